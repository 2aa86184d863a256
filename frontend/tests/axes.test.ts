import { expect, it } from 'vitest'

import { parseAxes, axisLabels, parseTokenList } from '../src/axes'

it('parses axes, and falls back to all axes', () => {
  expect(parseAxes('all')).toEqual({ kind: 'all' })
  expect(parseAxes('layer:11')).toEqual({ kind: 'layer', layer: 11 })
  expect(parseAxes('text:a: b, c')).toEqual({ kind: 'text', text: 'a: b, c' })
  expect(parseAxes('tokens: on, #262,')).toEqual({ kind: 'tokens', tokens: ['on', '#262'] })
  for (const nonsense of ['', 'layer:x', 'text:', 'tokens:', 'moon']) expect(parseAxes(nonsense)).toEqual({ kind: 'all' })
})

it('names an axis by its token and leaves out missing axes', () => {
  expect(axisLabels('tokens:river,sea', [0.312, 0.02, 0])).toEqual([{ name: 'river', share: '31 %' }, { name: 'sea', share: '2.0 %' }])
  expect(axisLabels('layer:2', [0.5, 0.25, 0.1]).map(({ name }) => name)).toEqual(['a', 'b', 'c'])
})

it('parses tokens separated by commas', () => {
  expect(parseTokenList(' river ,sea,, ')).toEqual(['river', 'sea'])
})
