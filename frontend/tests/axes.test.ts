import { expect, it } from 'vitest'

import { parseAxes, axisLabels, dominantShare, parseTokenList } from '../src/axes'

it('parses axes, and falls back to all axes', () => {
  expect(parseAxes('all')).toEqual({ kind: 'all' })
  expect(parseAxes('layer:11')).toEqual({ kind: 'layer', layer: 11 })
  expect(parseAxes('text:a: b, c')).toEqual({ kind: 'text', text: 'a: b, c' })
  expect(parseAxes('tokens: on, #262,')).toEqual({ kind: 'tokens', tokens: ['on', '#262'] })
  for (const nonsense of ['', 'layer:x', 'text:', 'tokens:', 'from:9', 'moon']) expect(parseAxes(nonsense)).toEqual({ kind: 'all' })
})

it('names an axis by its token and leaves out missing axes', () => {
  expect(axisLabels('tokens:river,sea', [0.312, 0.02, 0])).toEqual([{ name: 'river', share: '31 %' }, { name: 'sea', share: '2.0 %' }])
  expect(axisLabels('prediction', [0.02, 0.5, 0.1]).map(({ name }) => name)).toEqual(['★', 'b', 'c'])
  expect(axisLabels('layer:2', [0.5, 0.25, 0.1]).map(({ name }) => name)).toEqual(['a', 'b', 'c'])
})

it('names the axes that remain without the first, and finds a first axis that hides the others', () => {
  expect(parseAxes('from:2')).toEqual({ kind: 'from', first: 2 })
  expect(axisLabels('from:2', [0.1, 0.05, 0.02]).map(({ name }) => name)).toEqual(['b', 'c', 'd'])
  expect([dominantShare('all', [0.71, 0.1]), dominantShare('all', [0.4, 0.3]), dominantShare('from:2', [0.71, 0.1]), dominantShare('all', [])]).toEqual([0.71, null, null, null])
  expect([dominantShare('prediction', [0.02, 0.6]), dominantShare('prediction', [0.6, 0.02])]).toEqual([0.6, null])
})

it('parses tokens separated by commas', () => {
  expect(parseTokenList(' river ,sea,, ')).toEqual(['river', 'sea'])
})
