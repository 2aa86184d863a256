import { expect, it } from 'vitest'

import { fileName, legendPositions } from '../src/picture/save_image'

it('wraps the names of a legend', () => {
  const positions = legendPositions(['effective rank', 'null', 'a name that is far too long for what is left of the line'], 200)
  expect(positions.map(({ line }) => line)).toEqual([0, 0, 1])
  expect(positions[1]!.x).toBeGreaterThan(positions[0]!.x)
  expect(positions[2]!.x).toBe(0)
  expect(legendPositions([], 200)).toEqual([])
})

it('names a file by its title, without special characters', () => {
  expect(fileName('κ over strides: "W₂" / 2', 'svg')).toBe('rheoscope-κ-over-strides-w₂-2.svg')
})
