import { expect, it } from 'vitest'

import { headAt, laid, scaleOf } from '../src/heads/maps'
import { sliceAt, slicesOf } from '../src/heads/slices'
import { cellAt, CELL, SIDE, TALL, TOP, type Lattice } from '../src/views/lattice'
import { scaleOf as weightsScale } from '../src/weights/map'
import type { Answer, Field } from '../src/wire'

it('a click finds the head it points at, on every map', () => {
  const sizes = { layers: 12, heads: 12, width: 900, ratio: 1 }
  const at = laid(2, sizes)
  for (const map of [0, 1])
    for (const [layer, head] of [[0, 0], [11, 11], [3, 7]] as const)
      expect(headAt(at.lefts[map]! + (head + 0.5) * at.cell, at.top + (layer + 0.5) * at.tall, at, sizes)).toEqual({ map, layer, head })
  expect(headAt(1, 1, at, sizes)).toBeNull()
})

it('a field of more axes is cut into maps, whichever way its axes lie', () => {
  const field: Field = { values: Float32Array.from({ length: 12 }, (_, at) => at), shape: [2, 3, 2], dims: ['image', 'layer', 'head'] }
  expect(slicesOf({ coords: { image: { dims: ['image'], values: ['query', 'key'] } } } as unknown as Answer, field)).toEqual(['image query', 'image key'])
  expect([...sliceAt(field, 1)]).toEqual([6, 7, 8, 9, 10, 11])
  const last: Field = { ...field, shape: [3, 2, 2], dims: ['layer', 'head', 'image'] }
  expect([...sliceAt(last, 0)]).toEqual([0, 2, 4, 6, 8, 10])
})

it('a scale is centred at 0 where values lie on both sides', () => {
  expect(scaleOf(Float32Array.of(-1, 3, NaN))).toEqual({ low: -3, high: 3, centre: 0 })
  expect(scaleOf(Float32Array.of(1, 3))).toEqual({ low: 0, high: 3, centre: 0 })
  expect(weightsScale(Float32Array.of(0, 0.5, -0.25)).low).toBeLessThan(0)
})

it('a cell of the lattice is found however far it is scrolled', () => {
  const lattice: Lattice = { shown: [['a', 'b'], ['c', 'd']], probability: new Float32Array(4), tokens: 2, before: null }
  expect(cellAt(lattice, SIDE + 0.5 * CELL, TOP + 1.5 * TALL, CELL)).toEqual({ step: 1, token: 1 })
  expect(cellAt(lattice, SIDE - 3, TOP + 1, 0)).toBeNull()
})
