import { describe, expect, it } from 'vitest'

import type { Points, TraceInfo } from '../src/api'
import { aligningRotation, rotatePoints } from '../src/cloud/align_clouds'
import { cloudsInOneSpace, cloudsOfTwoModels, hasSameTokens, highlightedTokens, sameDepth, type CloudSide } from '../src/views/compare_clouds'

const QUARTER_TURN = [0, -1, 0, 1, 0, 0, 0, 0, 1]
const MIRROR = [1, 0, 0, 0, 1, 0, 0, 0, -1]
const scattered = (count: number): Float32Array => Float32Array.from({ length: count * 3 }, (_, k) => (Math.sin(12.9898 * (k + 1)) * 43758.5453) % 1)
const info = (words: string[], steps = 2) => ({ tokens: words.map((text) => ({ text })), steps: Array(steps).fill('') }) as unknown as TraceInfo
const side = (points: Float32Array, words: string[], star: number[] | null = null): CloudSide => {
  const steps = points.length / (3 * words.length)
  return { info: info(words, steps), points: { points, steps, tokens: words.length, star: star && Float32Array.from(star), share: 1, shares: [], space: 'sphere', axes: 'all' } as Points }
}
const allShown = [() => true, () => true]
const expectClose = (received: ArrayLike<number>, expected: ArrayLike<number>) => Array.from(expected).forEach((value, index) => expect(received[index]).toBeCloseTo(value, 4))

describe('the rotation that aligns two clouds', () => {
  it.each([['a rotation', QUARTER_TURN], ['a reflection', MIRROR]])('recovers %s', (_, rotation) => {
    const points = scattered(7)
    expectClose(aligningRotation(points, rotatePoints(points, rotation)), rotation)
  })
  it('rotates as well as any other rotation, where none is exact', () => {
    const [from, to] = [scattered(7), scattered(14).subarray(21)]
    const distance = (rotation: number[]) => rotatePoints(from, rotation).reduce((sum, value, index) => sum + (value - to[index]!) ** 2, 0)
    const best = aligningRotation(from, to)
    for (let angle = 0.01; angle < 6.28; angle += 0.3) {
      const [c, s] = [Math.cos(angle), Math.sin(angle)]
      for (const turn of [[c, -s, 0, s, c, 0, 0, 0, 1], [c, 0, s, 0, 1, 0, -s, 0, c], [1, 0, 0, 0, c, -s, 0, s, c]]) {
        const other = rotatePoints(Float32Array.from(best), turn) // rows of the best rotation, rotated
        expect(distance([...other])).toBeGreaterThanOrEqual(distance(best))
      }
    }
  })
  it('leaves points on a line as they are', () => expect(aligningRotation(Float32Array.of(1, 0, 0, 2, 0, 0), Float32Array.of(0, 1, 0, 0, 2, 0))).toEqual([1, 0, 0, 0, 1, 0, 0, 0, 1]))
})

describe('two clouds', () => {
  const words = ['a', 'b', 'c', 'd', 'e']
  const points = scattered(10)
  it('of one space keep their distances and share their frames', () => {
    const [first, second] = cloudsInOneSpace([side(points, words), side(points.map((x) => 3 * x), words)], allShown)
    const distances = (cloud: Float32Array) => cloud.map((value, k) => value - cloud[k % 3]!) // to the first point
    expectClose(distances(second!.points), distances(first!.points).map((x) => 3 * x))
    expect(first!.frames).toBe(second!.frames)
    expect(first!.frames.length).toBe(2)
  })
  it('of two models are scaled and rotated to match', () => {
    const [first, second] = cloudsOfTwoModels([side(rotatePoints(points, QUARTER_TURN).map((x) => 5 * x), words), side(points, words)], allShown)
    expectClose(first!.points, second!.points)
  })
  it('of other tokens are not rotated', () => {
    const star = [0, 1, 0]
    const [first, second] = cloudsOfTwoModels([side(points, ['a', 'b', 'c', 'd', 'x'], star), side(points, words, star)], allShown)
    expectClose(first!.points, second!.points)
    expect(first!.star).toEqual(second!.star)
    expect(hasSameTokens([side(points, ['a', 'b', 'c', 'd', 'x']), side(points, words)])).toBe(false)
  })
  it('are compared at the same relative depth', () => expect([sameDepth(6, 13, 13), sameDepth(6, 25, 13), sameDepth(0, 1, 1)]).toEqual([6, 12, 0]))
  it('highlight the same words', () => {
    const [shown, other] = [info(['a', 'b', 'c']), info(['c', 'a', 'c'])]
    expect([...highlightedTokens(new Set([2]), shown, other, false)]).toEqual([0, 2])
    expect([...highlightedTokens(new Set([2]), shown, other, true)]).toEqual([2])
  })
})
