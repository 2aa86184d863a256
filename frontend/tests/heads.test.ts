import { describe, expect, it } from 'vitest'

import { dotPositions, dotPositionsBefore, nearestToken, panelSquares, alignTo } from '../src/heads/head_images'
import { buttonPosition, headAt, mapLayout, colourScale } from '../src/heads/head_maps'
import { makeCells } from '../src/picture/panel_builders'
import { isRounding, shadeOf } from '../src/picture/scale'
import { sliceValues, sliceNames } from '../src/heads/field_slices'
import { cellAt, CELL_WIDTH, LABEL_WIDTH, CELL_HEIGHT, HEADER_HEIGHT, type Lattice } from '../src/views/lens_lattice'
import { largestWeights, weightsScale } from '../src/weights/weight_ranges'
import type { AnalysisResult, Field, Images } from '../src/api'

it('finds the head at a pixel on every map', () => {
  const sizes = { layers: 12, heads: 12, width: 900, ratio: 1, hasButtons: false }
  const positions = mapLayout(2, sizes)
  for (const map of [0, 1])
    for (const [layer, head] of [[0, 0], [11, 11], [3, 7]] as const)
      expect(headAt(positions.lefts[map]! + (head + 0.5) * positions.cellWidth, positions.tops[map]! + (layer + 0.5) * positions.cellHeight, positions, sizes)).toEqual({ map, layer, head })
  expect(headAt(1, 1, positions, sizes)).toBeNull()
})

it('offers a button at every cell, which leaves room to select the cell', () => {
  for (const [heads, width] of [[4, 600], [12, 400], [64, 900]] as const) {
    const sizes = { layers: 6, heads, width, ratio: 1, hasButtons: false }
    const layout = mapLayout(1, sizes)
    const { left, top, size } = buttonPosition(layout, 0, 2, 3)
    const [cellLeft, cellTop] = [layout.lefts[0]! + 3 * layout.cellWidth, layout.tops[0]! + 2 * layout.cellHeight]
    const covered = Math.max(0, Math.min(left + size, cellLeft + layout.cellWidth) - Math.max(left, cellLeft)) * Math.max(0, Math.min(top + size, cellTop + layout.cellHeight) - Math.max(top, cellTop))
    expect(covered).toBeGreaterThan(0) // the pointer reaches it from the cell
    expect(covered).toBeLessThan(0.8 * layout.cellWidth * layout.cellHeight)
    expect(top).toBeGreaterThanOrEqual(0)
  }
})

it('has room for a finger in every cell of a screen without a hovering pointer, where the maps are one above the other', () => {
  for (const heads of [4, 32]) {
    const sizes = { layers: 6, heads, width: 358, ratio: 1, hasButtons: true }
    const layout = mapLayout(2, sizes)
    const { left, top, size } = buttonPosition(layout, 1, 2, 3)
    expect(size).toBeGreaterThanOrEqual(24)
    expect(headAt(left + 1, top + size / 2, layout, sizes)).toEqual({ map: 1, layer: 2, head: 3 })
    expect(headAt(left - 24, top + size / 2, layout, sizes)).toEqual({ map: 1, layer: 2, head: 3 }) // the rest of the cell selects it
    expect(layout.width).toBeGreaterThanOrEqual(layout.lefts[0]! + heads * layout.cellWidth)
    expect(layout.tops[1]! - layout.tops[0]!).toBeGreaterThan(6 * layout.cellHeight)
  }
})

it('slices a field with more dimensions into maps', () => {
  const field: Field = { values: Float32Array.from({ length: 12 }, (_, positions) => positions), shape: [2, 3, 2], dims: ['image', 'layer', 'head'] }
  expect(sliceNames({ coords: { image: { dims: ['image'], values: ['query', 'key'] } } } as unknown as AnalysisResult, field)).toEqual(['image query', 'image key'])
  expect([...sliceValues(field, 1)]).toEqual([6, 7, 8, 9, 10, 11])
  const last: Field = { ...field, shape: [3, 2, 2], dims: ['layer', 'head', 'image'] }
  expect([...sliceValues(last, 0)]).toEqual([0, 2, 4, 6, 8, 10])
})

it('makes a scale symmetric if some values are negative', () => {
  expect(colourScale([Float32Array.of(-1, 3, NaN)])).toEqual({ low: -3, high: 3, centre: 0, isRounding: false })
  expect(colourScale([Float32Array.of(1, 3)])).toEqual({ low: 0, high: 3, centre: 0, isRounding: false })
  expect(weightsScale(Float32Array.of(0, 0.5, -0.25)).low).toBeLessThan(0)
  expect([weightsScale(Float32Array.of(0, NaN)).isZero, weightsScale(Float32Array.of(0, 0.5)).isZero]).toEqual([true, false])
})

it('finds a cell of the scrolled lattice', () => {
  const lattice: Lattice = { predictions: [['a', 'b'], ['c', 'd']], probability: new Float32Array(4), tokens: 2, before: null }
  expect(cellAt(lattice, LABEL_WIDTH + 0.5 * CELL_WIDTH, HEADER_HEIGHT + 1.5 * CELL_HEIGHT, CELL_WIDTH)).toEqual({ step: 1, token: 1 })
  expect(cellAt(lattice, LABEL_WIDTH - 3, HEADER_HEIGHT + 1, 0)).toBeNull()
})

describe('images of a head', () => {
  const field = (values: number[]) => ({ values: Float32Array.from(values), shape: [values.length / 2, 2], dims: ['token', 'axis'] })
  const images = { flat: { E: field([0, 0, 2, 0, NaN, NaN, 1, 4]) } } as unknown as Images
  it('squares never overlap, in one row or in two', () => {
    for (const width of [340, 800]) {
      const { panels, height } = panelSquares(width)
      for (const panel of panels) {
        expect(panel.x + panel.size).toBeLessThanOrEqual(width + 0.01)
        expect(panel.y + panel.size).toBeLessThanOrEqual(height)
        for (const otherPanel of panels) if (otherPanel !== panel) expect(Math.abs(panel.x - otherPanel.x) >= panel.size || Math.abs(panel.y - otherPanel.y) >= panel.size).toBe(true)
      }
    }
  })
  it('an image from before the edits is rotated and mirrored onto the current one', () => {
    const target = Float32Array.of(0, 0, 2, 0, NaN, NaN, 1, 4)
    for (const mirror of [1, -1]) {
      const rotateCamera = Float32Array.from(target, (_, positions) => (positions % 2 ? mirror * target[positions - 1]! : -target[positions + 1]!) + 5)
      const aligned = alignTo(rotateCamera, target)
      for (const [positions, value] of target.entries()) if (Number.isFinite(value)) expect(aligned[positions]).toBeCloseTo(value, 4)
    }
    const square = panelSquares(800).panels[0]!
    const distant = { flat: { E: field([0, 0, 20, 0, NaN, NaN, 1, 40]) } } as unknown as Images
    for (const position of [dotPositionsBefore(distant, images, square), dotPositions(images, square, distant)].flatMap((all) => [...all]).filter(Number.isFinite)) expect(position).toBeLessThanOrEqual(square.y + square.size + 0.01)
    expect(dotPositionsBefore(images, images, square)[6]).toBeCloseTo(dotPositions(images, square)[6]!, 3)
  })
  it('an image has equal units on both axes and contains all tokens', () => {
    const square = panelSquares(800).panels[0]!
    const positions = dotPositions(images, square)
    expect((positions[2]! - positions[0]!) / (positions[1]! - positions[7]!)).toBeCloseTo(2 / 4)
    for (const token of [0, 1, 3]) expect(positions[token * 2]! >= square.x && positions[token * 2]! <= square.x + square.size && positions[token * 2 + 1]! >= square.y && positions[token * 2 + 1]! <= square.y + square.size).toBe(true)
    expect(nearestToken(positions, positions[6]! + 3, positions[7]! - 2)).toBe(3)
    expect(nearestToken(positions, -50, -50)).toBeNull()
  })
})

it('finds the largest weights of a row and of a column by absolute value', () => {
  const map = Float32Array.of(1, 0, NaN, 0.3, -0.6, NaN, 0.1, 0.7, 0.2)
  expect(largestWeights(map, 3, 'row', 1).map(({ token }) => token)).toEqual([1, 0])
  expect(largestWeights(map, 3, 'column', 0).map(({ token }) => token)).toEqual([0, 1, 2])
  expect(largestWeights(map, 3, 'row', 2, 1)).toEqual([{ token: 1, value: Math.fround(0.7) }])
})

it('gives values at rounding level no colour, and says so', () => {
  const scale = colourScale([Float32Array.of(-2e-10, 1e-10)])
  expect(scale.isRounding).toBe(true)
  expect(2e-10 / scale.high).toBeLessThan(0.01)
  expect(colourScale([Float32Array.of(3e-4, -3e-4)], [Float32Array.of(900)]).isRounding).toBe(true) // a difference of large values
  expect(colourScale([Float32Array.of(3e-4, -3e-4)]).isRounding).toBe(false)
  expect(colourScale([Float32Array.of(0, 0)]).isRounding).toBe(false)
  const weights = weightsScale(Float32Array.of(0, 2e-10, -1e-10))
  expect([weights.isRounding, 2e-10 / weights.high < 0.01]).toEqual([true, true])
  const cells = makeCells([[2e-10, -1e-10]], -2e-10, 2e-10)
  expect([isRounding(cells), Math.abs(shadeOf(cells, 2e-10)) < 0.01]).toEqual([true, true])
})
