import { expect, it } from 'vitest'

import { parseEdit, formatEdit, parseLink, isUndoable, DEFAULT_LINK, formatLink, type Link } from '../src/link'

it('an empty link is the default view', () => {
  expect(formatLink(DEFAULT_LINK)).toBe('')
  expect(parseLink('')).toEqual(DEFAULT_LINK)
})

it('a link keeps every value', () => {
  const link: Link = {
    model: 'a/b', window: 2, text: 'Ümläut & <b>#=1</b>\n中文 🙂', compareWith: 'text:another, one', view: 'all:charts', colour: 'charts.bend', space: 'raw', axes: 'tokens: a, b', language: 'zh',
    edits: [{ layer: 3, head: 1, part: 'M', operation: 'rank', value: 4 }, { layer: 0, head: 11, part: 'both', operation: 'scale', value: -0.25, off: true }, { layer: 2, head: 0, part: 'M', operation: 'offset0' }],
    step: 7, token: 0, second: 3, layer: 0, head: 2, field: 'agreement.z', show: ['arcs', 'moves', 'massive'], side: 'difference',
  }
  expect(parseLink(`#${formatLink(link)}`)).toEqual(link)
})

it('ignores invalid values in a link', () => {
  const link = parseLink('#edits=1.2,3.1.Q.rank,4.0.M.skew&step=-3&token=x&layer=1e9')
  expect(link.edits).toEqual([{ layer: 4, head: 0, part: 'M', operation: 'skew' }])
  expect([link.step, link.token, link.layer]).toEqual([0, null, null])
})

it('formats an edit without spaces', () => {
  const edit = { layer: 3, head: 1, part: 'F' as const, operation: 'scale', value: 1.5 }
  expect(formatEdit(edit)).toBe('3.1.F.scale.1_5')
  expect(parseEdit('3.1.F.scale.1_5')).toEqual(edit)
})

it('the back button undoes a new text but not a step', () => {
  expect(isUndoable({ text: 'a' })).toBe(true)
  expect(isUndoable({ step: 3 })).toBe(false)
})

it('keeps the layers of the cloud in a fixed order and ignores unknown ones', () => {
  expect(formatLink({ ...DEFAULT_LINK, show: ['coupling'] })).toBe('show=coupling')
  expect(parseLink('#show=massive,trails,fireworks').show).toEqual(['trails', 'massive'])
  expect(parseLink('#show=').show).toEqual([])
})
