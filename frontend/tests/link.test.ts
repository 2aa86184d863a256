import { expect, it } from 'vitest'

import type { TraceInfo } from '../src/api'
import { parseEdit, formatEdit, parseLink, isUndoable, DEFAULT_LINK, formatLink, linkFault, outOfRange, type Link } from '../src/link'
import { render } from '../src/messages/message'
import { withoutToken } from '../src/url_hash'

it('an empty link is the default view', () => {
  expect(formatLink(DEFAULT_LINK)).toBe('')
  expect(parseLink('')).toEqual(DEFAULT_LINK)
})

it('a link keeps every value', () => {
  const link: Link = {
    model: 'a/b', window: 2, tour: 3, target: 'une maison', cloud: 'source', text: 'Ümläut & <b>#=1</b>\n中文 🙂', compareWith: 'text:another, one', view: 'all:charts', colour: 'charts.bend', space: 'raw', axes: 'tokens: a, b', language: 'zh', run: 'races/small',
    edits: [{ layer: 3, head: 1, part: 'M', operation: 'rank', value: 4 }, { layer: 0, head: 11, part: 'both', operation: 'scale', value: -0.25, off: true }, { layer: 2, head: 0, part: 'M', operation: 'offset0' }],
    step: 7, token: 0, second: 3, layer: 0, head: 2, field: 'agreement.z', show: ['arcs', 'moves', 'massive'], side: 'difference',
  }
  expect(parseLink(`#${formatLink(link)}`)).toEqual(link)
})

it('reads the old name of a comparison', () => {
  expect(parseLink('#beside=untrained').compareWith).toBe('untrained')
  expect(formatLink({ ...DEFAULT_LINK, compareWith: 'untrained' })).toBe('compareWith=untrained')
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

it.each([
  ['#layer=abc', 'layer=abc'], ['#step=-3', 'step=-3'], ['#side=left', 'before, after, difference'], ['#view=nothing', 'view=nothing'], ['#edits=1.2', 'the edit 1.2'],
  ['#show=trails,fireworks', 'show=fireworks'], ['#language=xx', 'en, zh'], ['#space=flat', 'sphere, raw'], ['#compareWith=stories', 'compareWith=stories'],
])('names the fault of the link %s', (hash, fault) => expect(render(linkFault(hash)!)).toContain(fault))

it('finds no fault in a valid link', () => {
  expect(linkFault('')).toBeNull()
  expect(linkFault('#compareWith=text:a')).toBeNull()
  expect(linkFault('#view=all:charts&layer=3&show=&edits=3.1.M.rank.4&side=before')).toBeNull()
})

it('keeps the name of a setting in another language', () => {
  expect(render(linkFault('#layer=abc')!, { layer: '层' })).toContain('layer=abc')
})

it('shows no comparison that cannot be read', () => {
  expect(parseLink('#compareWith=stories').compareWith).toBe('')
  expect(parseLink('#compareWith=model:stories').compareWith).toBe('model:stories')
})

it('names an index that the trace does not have, and removes it', () => {
  const info = { layers: 6, heads: 4, tokens: [{}, {}], steps: ['embed', 'L0'] } as unknown as TraceInfo
  const { change, message } = outOfRange({ ...DEFAULT_LINK, layer: 77, head: 1, step: 9 }, info)!
  expect(change).toEqual({ layer: null, step: 1 })
  expect(render(message)).toContain('layer=77')
  expect(render(message)).toContain('is 5')
  expect(outOfRange({ ...DEFAULT_LINK, layer: 5, head: 3, token: 1, step: 1 }, info)).toBeNull()
})

it('an address that is shared has no token', () => {
  expect(withoutToken('http://a:1/?token=secret#text=x')).toBe('http://a:1/#text=x')
  expect(withoutToken('http://a:1/?token=secret&b=1')).toBe('http://a:1/?b=1')
  expect(withoutToken('http://a:1/#text=?token=1')).toBe('http://a:1/#text=?token=1')
})
