import { expect, it } from 'vitest'

import { editRead, editWritten, read, remembered, USUAL, written, type Link } from '../src/link'

it('a link that says nothing is the usual view', () => {
  expect(written(USUAL)).toBe('')
  expect(read('')).toEqual(USUAL)
})

it('everything comes back from its link', () => {
  const link: Link = {
    model: 'a/b', window: 2, text: 'Ümläut & <b>#=1</b>\n中文 🙂', beside: 'text:another, one', view: 'all:charts', colour: 'charts.bend', space: 'raw', axes: 'tokens: a, b', language: 'zh',
    edits: [{ layer: 3, head: 1, part: 'M', operation: 'rank', value: 4 }, { layer: 0, head: 11, part: 'both', operation: 'scale', value: -0.25, off: true }, { layer: 2, head: 0, part: 'M', operation: 'offset0' }],
    step: 7, token: 0, second: 3, layer: 0, head: 2, field: 'agreement.z', show: ['arcs', 'moves', 'massive'], side: 'difference',
  }
  expect(read(`#${written(link)}`)).toEqual(link)
})

it('nonsense in a link is left out, never thrown', () => {
  const link = read('#edits=1.2,3.1.Q.rank,4.0.M.skew&step=-3&token=x&layer=1e9')
  expect(link.edits).toEqual([{ layer: 4, head: 0, part: 'M', operation: 'skew' }])
  expect([link.step, link.token, link.layer]).toEqual([0, null, null])
})

it('an edit is written as one word', () => {
  const edit = { layer: 3, head: 1, part: 'F' as const, operation: 'scale', value: 1.5 }
  expect(editWritten(edit)).toBe('3.1.F.scale.1_5')
  expect(editRead('3.1.F.scale.1_5')).toEqual(edit)
})

it('the back button undoes a new text, not a step of the scrubber', () => {
  expect(remembered({ text: 'a' })).toBe(true)
  expect(remembered({ step: 3 })).toBe(false)
})

it('what the cloud shows stands in the link, in one order, and nothing that it cannot show', () => {
  expect(written({ ...USUAL, show: ['coupling'] })).toBe('show=coupling')
  expect(read('#show=massive,trails,fireworks').show).toEqual(['trails', 'massive'])
  expect(read('#show=').show).toEqual([])
})
