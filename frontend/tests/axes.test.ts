import { expect, it } from 'vitest'

import { axesRead, axesShown, tokensTyped } from '../src/axes'

it('axes come back from their word, whatever stands in it', () => {
  expect(axesRead('all')).toEqual({ kind: 'all' })
  expect(axesRead('layer:11')).toEqual({ kind: 'layer', layer: 11 })
  expect(axesRead('text:a: b, c')).toEqual({ kind: 'text', text: 'a: b, c' })
  expect(axesRead('tokens: on, #262,')).toEqual({ kind: 'tokens', tokens: ['on', '#262'] })
  for (const nonsense of ['', 'layer:x', 'text:', 'tokens:', 'moon']) expect(axesRead(nonsense)).toEqual({ kind: 'all' })
})

it('an axis is named by its token; one that is not there is not told', () => {
  expect(axesShown('tokens:river,sea', [0.312, 0.02, 0])).toEqual([{ name: 'river', share: '31 %' }, { name: 'sea', share: '2.0 %' }])
  expect(axesShown('layer:2', [0.5, 0.25, 0.1]).map(({ name }) => name)).toEqual(['a', 'b', 'c'])
})

it('tokens are typed between commas', () => {
  expect(tokensTyped(' river ,sea,, ')).toEqual(['river', 'sea'])
})
