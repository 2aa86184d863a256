import { expect, it } from 'vitest'

import { barRows } from '../src/next_token_bars'

const list = (...pairs: [string, number][]) => pairs.map(([shown, probability]) => ({ shown, probability }))

it('a bar knows its probability before the edits, if it is listed there', () => {
  const rows = barRows(list(['b', 0.4], ['a', 0.3], ['c', 0.1]), list(['a', 0.6], ['b', 0.2]))
  expect(rows.map(({ shown, before }) => [shown, before])).toEqual([['b', 0.2], ['a', 0.6], ['c', null]])
})

it('tokens that look the same have bars of their own', () => {
  const rows = barRows(list(['�', 0.4], ['�', 0.3]), list(['�', 0.2], ['�', 0.1]))
  expect(new Set(rows.map(({ key }) => key)).size).toBe(2)
  expect(rows.map(({ before }) => before)).toEqual([0.2, 0.1])
})
