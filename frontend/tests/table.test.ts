import { expect, test } from 'vitest'

import { axis, line, panel } from '../src/picture/made'
import { cell, csv, ofPairs, ofPanel, ofPlaces } from '../src/picture/table'

test('cells are what a spreadsheet reads', () => {
  expect([cell(0.5), cell(NaN), cell('a,b'), cell('say "x"'), cell('=1+1'), cell(' the')]).toEqual(['0.5', '', '"a,b"', '"say ""x"""', "'=1+1", ' the'])
})

test('a map is a line a pair, after what it is of', () => {
  const rows = ofPairs(Float32Array.of(1, 0, 0.25, 0.75), 2, 2, ['a', 'b'])
  const text = csv({ columns: ['query', 'query_token', 'key', 'key_token', 'weights'], rows }, { model: 'm\nx', edits: [] })
  expect(text.split('\n')).toEqual(['# model: m x', '# edits: []', 'query,query_token,key,key_token,weights', '0,a,0,a,1', '0,a,1,b,0', '1,b,0,a,0.25', '1,b,1,b,0.75', ''])
})

test('a cloud is a line a token and step', () => {
  expect([...ofPlaces(Float32Array.of(1, 2, 3, 4, 5, 6), ['embed', 'L0'], ['a'])]).toEqual([['embed', 0, 'a', 1, 2, 3], ['L0', 0, 'a', 4, 5, 6]])
})

test('a panel is what it draws, by the names of its axes', () => {
  const drawn = panel('t', [line('M', [3, 1])], { x: axis({ names: ['L0', 'L1'] }) })
  expect([...ofPanel(drawn)]).toEqual([['line', 'M', 'L0', 3, NaN], ['line', 'M', 'L1', 1, NaN]])
  const cells = { mark: 'cells' as const, values: [[1, null]], texts: [], tips: [], marked: [], low: 0, high: 1, centre: 0, name: 'weight' }
  expect([...ofPanel({ ...drawn, marks: [cells, { mark: 'word', x: 1, y: 2, text: 'a', side: '', strong: false }] })]).toEqual([
    ['cells', 'weight', 'L0', 0, 1], ['cells', 'weight', 'L1', 0, NaN], ['word', 'a', 1, 2, NaN],
  ])
})
