import { describe, expect, it } from 'vitest'

import { lensOf, nearer, project, slid, START, times, turned, viewOf } from '../src/cloud/camera'
import { valuesAt } from '../src/cloud/colour'
import { ballOf, bow, cloudAt, decluttered, inBall, strongest, type Box, type Scene } from '../src/cloud/frame'
import { axisLines, labelled, under } from '../src/cloud/hand'
import { shortened } from '../src/cloud/words'
import { LIGHT } from '../src/palette'
import type { Answer, Head, Points } from '../src/wire'

const points = (values: number[], steps: number, tokens: number): Points => ({ points: Float32Array.from(values), steps, tokens, star: null, share: 1, shares: [], space: 'raw', axes: 'all' })

describe('the eye', () => {
  it('sees what it looks at in the middle of the sheet', () => {
    const [x, y, depth] = project(Float32Array.of(0, 0, 0), START, 400, 300)
    expect(x).toBeCloseTo(200)
    expect(y).toBeCloseTo(150)
    expect(depth).toBeCloseTo(START.distance)
  })
  it('keeps what it looks at in the middle while it turns and comes nearer', () => {
    const eye = nearer(turned({ ...START, x: 1, y: 2, z: 3 }, 50, -20), 0.5)
    const [x, y] = project(Float32Array.of(1, 2, 3), eye, 400, 300)
    expect(x).toBeCloseTo(200)
    expect(y).toBeCloseTo(150)
  })
  it('slides as far as the pointer does', () => {
    const [x, y] = project(Float32Array.of(0, 0, 0), slid(START, 30, -12, 300, 500), 300, 500)
    expect(x).toBeCloseTo(180)
    expect(y).toBeCloseTo(238)
  })
  it('turns without stretching', () => {
    const m = viewOf(turned(START, 77, 31))
    for (let a = 0; a < 3; a++) for (let b = 0; b < 3; b++) {
      let dot = 0
      for (let k = 0; k < 3; k++) dot += m[a * 4 + k]! * m[b * 4 + k]!
      expect(dot).toBeCloseTo(a === b ? 1 : 0)
    }
  })
  it('one matrix after the other is their product', () => {
    const m = times(lensOf(2), viewOf(START))
    const [x] = project(Float32Array.of(0.3, 0.1, -0.2), START, 200, 100)
    const w = m[3]! * 0.3 + m[7]! * 0.1 + m[11]! * -0.2 + m[15]!
    expect(x).toBeCloseTo(((m[0]! * 0.3 + m[4]! * 0.1 + m[8]! * -0.2 + m[12]!) / w + 1) * 100, 4)
  })
  it('has its axes in the lower left corner', () => {
    const sheet = { width: 800, height: 500, ratio: 1, theme: LIGHT }
    for (const one of axisLines(START, sheet)) {
      const [x, y] = project(Float32Array.from(one.slice(0, 3)), START, 800, 500)
      expect(x).toBeCloseTo(132, 1)
      expect(y).toBeCloseTo(404, 1)
    }
  })
})

describe('the cloud', () => {
  it('is at a step where the scrubber is, and between two steps in between', () => {
    const all = Float32Array.of(0, 0, 0, 2, 4, 6)
    expect([...cloudAt(all, 1, 0)]).toEqual([0, 0, 0])
    expect([...cloudAt(all, 1, 0.25)]).toEqual([0.5, 1, 1.5])
    expect([...cloudAt(all, 1, 9)]).toEqual([2, 4, 6])
  })
  it('fills a ball of radius one, whatever its size and place', () => {
    const some = points([10, 0, 0, 30, 0, 0, 10, 0, 0, 30, 0, 0], 2, 2)
    const all = inBall(some, ballOf(some, () => true, 2))
    expect(Math.max(...all)).toBeCloseTo(1)
    expect(Math.min(...all)).toBeCloseTo(-1)
  })
  it('is not shrunk by tokens that are not shown', () => {
    const some = points([0, 0, 0, 1, 0, 0, 1000, 0, 0], 1, 3)
    expect(ballOf(some, (token) => token < 2, 3).size).toBeCloseTo(0.5)
  })
  it('finds the token under the pointer', () => {
    const screen = Float32Array.of(10, 10, 1, 40, 40, 1, 41, 41, NaN)
    expect(under(screen, 42, 42, () => true)).toBe(1)
    expect(under(screen, 100, 100, () => true)).toBeNull()
    expect(under(screen, 40, 40, (token) => token !== 1)).toBeNull()
  })
  it('draws the strongest arcs of a query, none to itself', () => {
    const map = Float32Array.of(1, 0, 0, 0.5, 0.5, 0, 0.2, 0.7, 0.1)
    expect(strongest(map, 3, 2)).toMatchObject([{ from: 2, to: 1 }, { from: 2, to: 0 }])
    expect(strongest(map, 3, null, 1)).toHaveLength(1)
    expect(strongest(Float32Array.of(0, 0, 0, -0.5, 0, 0, 0.2, 0.01, 0), 3, null)).toEqual([{ from: 1, to: 0, weight: -0.5 }, { from: 2, to: 0, weight: expect.closeTo(0.2) }])
  })
  it('a bow starts and ends at its tokens', () => {
    const way = bow([0, 0, 1], [1, 0, 0])
    expect(way[0]).toEqual([0, 0, 1])
    expect(way.at(-1)).toEqual([1, 0, 0])
  })
})

describe('labels', () => {
  it('leave the place of the star free', () => {
    const scene = { tokens: 2, labels: ['near', 'far'], shown: () => true, bright: new Set<number>(), starLabel: 'prediction' } as unknown as Scene
    const screen = Float32Array.of(100, 100, 1, 300, 300, 1)
    const size = () => ({ width: 60, height: 14 })
    const sheet = { width: 400, height: 400, ratio: 1, theme: LIGHT }
    const told = (star: Float32Array | null) => labelled(scene, { places: screen, screen, star }, sheet, size).map(({ token }) => token)
    expect(told(null)).toEqual([0, 1])
    expect(told(Float32Array.of(95, 104, 1))).toEqual([1])
  })
  it('never cover one another, and those first in order win', () => {
    const boxes: Box[] = Array.from({ length: 200 }, (_, token) => ({ token, x: (token * 37) % 300, y: (token * 53) % 200, width: 40, height: 15 }))
    const kept = decluttered(boxes.map((box) => box.token), (token) => boxes[token]!, 300, 200, 512)
    expect(kept[0]!.token).toBe(0)
    expect(kept.length).toBeGreaterThan(10)
    const apart = (a: Box, b: Box) => a.x >= b.x + b.width || b.x >= a.x + a.width || a.y >= b.y + b.height || b.y >= a.y + a.height
    for (const a of kept) for (const b of kept) if (a !== b) expect(apart(a, b)).toBe(true)
  })
  it('show what would turn or break a line', () => {
    expect(shortened('a\u202eb\u0000c')).toBe('a□b□c')
    expect([...shortened('🙂'.repeat(50))].length).toBe(18)
  })
})

it('a field of some tokens and some steps finds its place in the text', () => {
  const head = { tokens: Array.from({ length: 4 }, () => ({})), steps: ['embed', 'L0.resid_mid', 'L0.resid_post'] } as unknown as Head
  const answer = { coords: { point: { dims: ['point'], values: ['embed', 'L0.resid_post'] }, token: { dims: ['token'], values: [1, 3] } } } as unknown as Answer
  const field = { values: Float32Array.of(1, 2, 3, 4), shape: [2, 2], dims: ['point', 'token'] }
  expect([...valuesAt(answer, field, head, 2)]).toEqual([NaN, 3, NaN, 4])
  expect([...valuesAt(answer, field, head, 0)]).toEqual([NaN, 1, NaN, 2])
})
