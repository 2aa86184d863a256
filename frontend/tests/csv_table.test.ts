import { expect, test } from 'vitest'

import { makeAxis, makeLine, makePanel } from '../src/picture/panel_builders'
import { csvCell, pairRows, panelRows, pointRows, toCsv } from '../src/picture/csv_table'
import { renderPanel } from '../src/picture/render_panel'
import { PLAIN } from './plain_renderer'

test('quotes cells for a spreadsheet', () => {
  expect([csvCell(0.5), csvCell(NaN), csvCell('a,b'), csvCell('say "x"'), csvCell('=1+1'), csvCell(' the')]).toEqual(['0.5', '', '"a,b"', '"say ""x"""', "'=1+1", ' the'])
})

test('writes a map with one row per pair, after its provenance', () => {
  const rows = pairRows(Float32Array.of(1, 0, 0.25, 0.75), 2, 2, ['a', 'b'])
  const text = toCsv({ columns: ['query', 'query_token', 'key', 'key_token', 'weights'], rows }, { model: 'm\nx', edits: [] })
  expect(text.split('\n')).toEqual(['# model: m x', '# edits: []', 'query,query_token,key,key_token,weights', '0,a,0,a,1', '0,a,1,b,0', '1,b,0,a,0.25', '1,b,1,b,0.75', ''])
})

test('writes a cloud with one row per step and token', () => {
  expect([...pointRows(Float32Array.of(1, 2, 3, 4, 5, 6), ['embed', 'L0'], ['a'])]).toEqual([['embed', 0, 'a', 1, 2, 3], ['L0', 0, 'a', 4, 5, 6]])
})

test('writes a panel with the names of its axes', () => {
  const panel = makePanel('t', [makeLine('M', [3, 1])], { x: makeAxis({ names: ['L0', 'L1'] }) })
  expect([...panelRows(renderPanel(panel, PLAIN))]).toEqual([['line', 'M', 'L0', 3, NaN], ['line', 'M', 'L1', 1, NaN]])
  const cells = { mark: 'cells' as const, values: [[1, null]], texts: [], tips: [], marked: [], low: 0, high: 1, centre: 0, name: 'weight' }
  expect([...panelRows(renderPanel({ ...panel, marks: [cells, { mark: 'label', x: 1, y: 2, text: 'a', side: '', strong: false }] }, PLAIN))]).toEqual([
    ['cells', 'weight', 'L0', 0, 1], ['cells', 'weight', 'L1', 0, NaN], ['label', 'a', 1, 2, NaN],
  ])
})
