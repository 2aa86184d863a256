import { expect, it } from 'vitest'

import { fileName, keyPlaces } from '../src/picture/save'

it('names of a key stand one after the other and go on in the next line', () => {
  const places = keyPlaces(['effective rank', 'null', 'a name that is far too long for what is left of the line'], 200)
  expect(places.map(({ line }) => line)).toEqual([0, 0, 1])
  expect(places[1]!.x).toBeGreaterThan(places[0]!.x)
  expect(places[2]!.x).toBe(0)
  expect(keyPlaces([], 200)).toEqual([])
})

it('a file is named by what it shows, without what a disk might not like', () => {
  expect(fileName('κ over strides: "W₂" / 2', 'svg')).toBe('rheoscope-κ-over-strides-w₂-2.svg')
})
