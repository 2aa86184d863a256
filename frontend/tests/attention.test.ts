import { describe, expect, it } from 'vitest'

import { arcPath, arcWidth, readTokens } from '../src/weights/text_arcs'
import { LIGHT } from '../src/palette'
import { drawNamedMap } from '../src/weights/draw_named_map'
import { axisName, axisPositions, mapSize, MAX_NAMED, sampleMap, SMALLEST_CELL, smallestMap } from '../src/weights/map_axes'

describe('arcs over the text', () => {
  it('lead to the keys with the largest weights of the query', () => {
    const map = Float32Array.of(1, 0, 0, 0.4, 0.6, 0, 0.01, 0.29, 0.7)
    expect(readTokens(map, 3, 2).map(({ token }) => token)).toEqual([2, 1]) // 1 % has no arc
    expect(readTokens(map, 3, 1).map(({ token }) => token)).toEqual([1, 0])
    expect(readTokens(Float32Array.of(-0.5, 0.1), 2, 0).map(({ token }) => token)).toEqual([0, 1]) // a difference
  })
  it('are as wide as the weights', () => {
    expect(arcWidth(0.2, 0.4)).toBeCloseTo(arcWidth(0.4, 0.4) / 2)
    expect(arcWidth(-0.4, 0.4)).toBe(arcWidth(0.4, 0.4))
    expect(arcWidth(0.001, 0.9)).toBe(1)
  })
  it('bend above words of one line and run between the lines otherwise', () => {
    const box = (left: number, top: number) => ({ left, top, width: 20, height: 20 })
    const ends = (path: string) => { const numbers = path.match(/-?[\d.]+/g)!.map(Number); return [numbers.slice(0, 2), numbers.slice(-2), numbers[3]] }
    expect(ends(arcPath(box(100, 50), box(0, 50)))).toEqual([[110, 50], [10, 50], 41])
    expect(ends(arcPath(box(100, 50), box(0, 10)))).toEqual([[110, 50], [10, 30], 40])
    expect(ends(arcPath(box(100, 10), box(0, 50)))).toEqual([[110, 30], [10, 50], 40])
  })
})

describe('maps with token names', () => {
  it('show all tokens of a text up to 64, and else a sample with the given ones', () => {
    expect(axisPositions(3, [1])).toEqual([0, 1, 2])
    expect(axisPositions(MAX_NAMED)).toHaveLength(MAX_NAMED)
    const sample = axisPositions(1000, [7, 999, 5000])
    expect(sample).toHaveLength(MAX_NAMED)
    expect(sample).toEqual([...new Set(sample)].sort((a, b) => a - b))
    expect(sample).toContain(7)
    expect([sample[0], sample.at(-1)]).toEqual([0, 999])
  })
  it('have the cells of the sampled rows and columns', () => {
    expect([...sampleMap(Float32Array.of(1, 2, 3, 4, 5, 6, 7, 8, 9), 3, [0, 2], [1, 2])]).toEqual([2, 3, 8, 9])
  })
  it('name every row and column and draw one of each as bars', () => {
    const [names, rectangles]: [string[], number[][]] = [[], []]
    const context = new Proxy({} as Record<string, unknown>, {
      get: (target, name: string) => (name === 'fillText' ? (text: string) => names.push(text) : name === 'fillRect' ? (...box: number[]) => rectangles.push(box) : (target[name] ?? (() => undefined))),
    })
    const canvas = { getContext: () => context } as unknown as HTMLCanvasElement
    const cells = { values: Float32Array.of(1, NaN, 0.25, 0.5), rows: ['a', 'b'], columns: ['c', 'd'], row: 1, column: 0 }
    drawNamedMap(canvas, cells, { cell: 20, labels: 30, width: 116, height: 116 }, { low: 0, high: 0.5, isRounding: false, isZero: false }, 2, LIGHT)
    expect(names).toEqual(['a', 'b', 'c', 'd'])
    expect(rectangles.slice(4).map(([, , width, height]) => [width, height])).toEqual([[18, 20], [18, 40], [40, 18], [20, 18]])
    expect([canvas.width, canvas.height]).toEqual([232, 232])
  })
  it('fill their room but stay readable', () => {
    const names = Array.from({ length: 64 }, () => '·token')
    expect(mapSize(names, 64, 64, 2000).cell).toBe(26)
    expect(mapSize(names, 64, 64, 1000)).toMatchObject({ width: expect.closeTo(1000, 5) })
    expect(mapSize(names, 64, 64, 300).cell).toBe(SMALLEST_CELL)
    expect(smallestMap([...names, ...names])).toBe(smallestMap(names))
    expect([axisName('·a'), [...axisName('🙂'.repeat(20))].length]).toEqual(['·a', 12])
  })
})
