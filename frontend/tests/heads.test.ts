import { describe, expect, it } from 'vitest'

import { dots, dotsBefore, nearest, placed, turnedTo } from '../src/heads/images'
import { headAt, laid, scaleOf } from '../src/heads/maps'
import { sliceAt, slicesOf } from '../src/heads/slices'
import { cellAt, CELL, SIDE, TALL, TOP, type Lattice } from '../src/views/lattice'
import { largest, scaleOf as weightsScale } from '../src/weights/map'
import type { Answer, Field, Images } from '../src/wire'

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

describe('how a head sees the tokens', () => {
  const field = (values: number[]) => ({ values: Float32Array.from(values), shape: [values.length / 2, 2], dims: ['token', 'axis'] })
  const images = { flat: { E: field([0, 0, 2, 0, NaN, NaN, 1, 4]) } } as unknown as Images
  it('squares stand beside one another, or two by two, and never over one another', () => {
    for (const width of [340, 800]) {
      const { panels, height } = placed(width)
      for (const one of panels) {
        expect(one.x + one.size).toBeLessThanOrEqual(width + 0.01)
        expect(one.y + one.size).toBeLessThanOrEqual(height)
        for (const other of panels) if (other !== one) expect(Math.abs(one.x - other.x) >= one.size || Math.abs(one.y - other.y) >= one.size).toBe(true)
      }
    }
  })
  it('a picture from before is turned onto the other, and mirrored where that is nearer', () => {
    const goal = Float32Array.of(0, 0, 2, 0, NaN, NaN, 1, 4)
    for (const mirror of [1, -1]) {
      const turned = Float32Array.from(goal, (_, at) => (at % 2 ? mirror * goal[at - 1]! : -goal[at + 1]!) + 5)
      const found = turnedTo(turned, goal)
      for (const [at, value] of goal.entries()) if (Number.isFinite(value)) expect(found[at]).toBeCloseTo(value, 4)
    }
    const square = placed(800).panels[0]!
    const far = { flat: { E: field([0, 0, 20, 0, NaN, NaN, 1, 40]) } } as unknown as Images
    for (const place of [dotsBefore(far, images, square), dots(images, square, far)].flatMap((all) => [...all]).filter(Number.isFinite)) expect(place).toBeLessThanOrEqual(square.y + square.size + 0.01)
    expect(dotsBefore(images, images, square)[6]).toBeCloseTo(dots(images, square)[6]!, 3)
  })
  it('a picture keeps what is near and far: both axes are equally long, and all tokens lie inside', () => {
    const square = placed(800).panels[0]!
    const at = dots(images, square)
    expect((at[2]! - at[0]!) / (at[1]! - at[7]!)).toBeCloseTo(2 / 4)
    for (const token of [0, 1, 3]) expect(at[token * 2]! >= square.x && at[token * 2]! <= square.x + square.size && at[token * 2 + 1]! >= square.y && at[token * 2 + 1]! <= square.y + square.size).toBe(true)
    expect(nearest(at, at[6]! + 3, at[7]! - 2)).toBe(3)
    expect(nearest(at, -50, -50)).toBeNull()
  })
})

it('a query asks along its row and is asked down its column, by size whatever the sign', () => {
  const map = Float32Array.of(1, 0, NaN, 0.3, -0.6, NaN, 0.1, 0.7, 0.2)
  expect(largest(map, 3, 'row', 1).map(({ token }) => token)).toEqual([1, 0])
  expect(largest(map, 3, 'column', 0).map(({ token }) => token)).toEqual([0, 1, 2])
  expect(largest(map, 3, 'row', 2, 1)).toEqual([{ token: 1, value: Math.fround(0.7) }])
})
