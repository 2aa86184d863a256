import { expect, it } from 'vitest'

import { barRows } from '../src/next_token_bars'

const list = (...rows: [number, string, number][]) => rows.map(([id, shown, probability]) => ({ id, shown, probability }))

it('a bar knows its probability before the edits, if it is listed there', () => {
  const rows = barRows(list([2, 'b', 0.4], [1, 'a', 0.3], [3, 'c', 0.1]), list([1, 'a', 0.6], [2, 'b', 0.2]))
  expect(rows.map(({ shown, before }) => [shown, before])).toEqual([['b', 0.2], ['a', 0.6], ['c', null]])
})

it('tokens that look the same have bars of their own', () => {
  const rows = barRows(list([7, '\ufffd', 0.4], [8, '\ufffd', 0.3]), list([8, '\ufffd', 0.2], [7, '\ufffd', 0.1]))
  expect(rows.map(({ before }) => before)).toEqual([0.1, 0.2])
})
