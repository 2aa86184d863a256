import { expect, it } from 'vitest'

import { START, viewOf } from '../src/cloud/camera'
import { byAgreement, bySense } from '../src/cloud/colour'
import { arrows, barbs, couplingAt, couplingLines, enlarged } from '../src/cloud/strokes'
import type { Answer, Head } from '../src/wire'

const places = Float32Array.of(0, 0, 0, 1, 1, 1, /* step 1 */ 2, 2, 2, 3, 3, 3)
const steps = ['embed', 'L0.resid_mid', 'L0.resid_post', 'L1.resid_mid', 'L1.resid_post']
const answer = (values: number[], coords: Record<string, unknown[]>, name = 'coupling', dims = ['step', 'token']): Answer => ({
  name: 'transport', question: '', attrs: {}, fields: {}, pictures: [], texts: {}, left_out: [],
  coords: Object.fromEntries(Object.entries(coords).map(([dim, all]) => [dim, { dims: [dim], values: all }])),
  arrays: { [name]: { values: Float32Array.from(values), shape: [values.length / coords.token!.length, coords.token!.length], dims } },
})

it('arrows begin where the head reads and are as long as they say', () => {
  const moves = { moves: Float32Array.of(0.2, 0, 0, 0, -0.4, 0), step: 'embed', share: 1, edited: false }
  const [first, second] = arrows(moves, places, 2, 1, 2, 10)
  expect(first!.from).toEqual([2, 2, 2])
  expect(first!.to[0]).toBeCloseTo(3)
  expect(second!.to[1]).toBeCloseTo(1)
})

it('arrows are enlarged by a plain factor, so that most are seen', () => {
  for (const long of [0.0031, 0.02, 0.11, 0.7, 13]) {
    const times = enlarged(new Float32Array(30).fill(long / Math.sqrt(3)), 1)
    expect(long * times).toBeGreaterThan(0.1)
    expect(long * times).toBeLessThanOrEqual(0.3001)
    expect([1, 2, 5]).toContain(Math.round(times / 10 ** Math.floor(Math.log10(times * 1.0001))))
  }
  expect(enlarged(new Float32Array(6), 1)).toBe(1)
})

it('a coupling names tokens by their place in the text, and only those that would move', () => {
  const told = answer([0, 1, 2, 0, 2, 1], { point: ['embed', 'L0.resid_post', 'L1.resid_post'], token: [1, 3, 4] })
  expect(couplingAt(told, steps, 1)).toEqual({ from: 'embed', to: 'L0.resid_post', pairs: [], tokens: 3 })
  const later = { from: 'L0.resid_post', to: 'L1.resid_post', pairs: [[3, 4], [4, 3]], tokens: 3 }
  expect(couplingAt(told, steps, 2)).toEqual(later)
  expect(couplingAt(told, steps, 4)).toEqual(later)
})

it('a line of the coupling ends at the place that the partner has afterwards', () => {
  const [line] = couplingLines({ from: 'a', to: 'b', pairs: [[0, 1]], tokens: 2 }, places, 2, ['a', 'b'])
  expect([line!.from, line!.to]).toEqual([[0, 0, 0], [3, 3, 3]])
})

it('barbs lie on both sides of the tip, turned to the eye', () => {
  const one = { token: 0, from: [0, 0, 0] as [number, number, number], to: [1, 0, 0] as [number, number, number], colour: '#000000', barbed: true }
  const [a, b] = barbs(one, START)
  const m = viewOf(START)
  const depth = (p: number[]) => m[2]! * p[0]! + m[6]! * p[1]! + m[10]! * p[2]!
  expect(a[0]).toBeCloseTo(b[0])
  expect(a[0]).toBeLessThan(1)
  expect(depth(a) - depth(b)).toBeCloseTo(0)
})

const head = { steps: ['embed', 'L0.resid_post'], tokens: ['The', 'bank', 'bank', 'sea', '.', '.'].map((text) => ({ text, shown: text, massive: false })) } as Head

it('senses are told of words that come again, and differ where their clusters do', () => {
  const told = answer([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], { point: head.steps, token: [0, 1, 2, 3, 4, 5] }, 'lineage', ['point', 'token'])
  const colours = (step: number) => {
    const { colours } = bySense(told, 'lineage', head, step)
    return head.tokens.map((_, token) => [...colours.subarray(token * 3, token * 3 + 3)].join())
  }
  expect(colours(0)[1]).toBe(colours(0)[2])
  expect(colours(1)[1]).not.toBe(colours(1)[2])
  expect(colours(1)[1]).toBe(colours(0)[1])
  for (const token of [3, 4, 5]) expect(colours(1)[token]).toBe(colours(1)[0])
})

it('agreement has one scale for all heads', () => {
  expect(byAgreement(Float32Array.of(-1, 0, 1, NaN, 0, 0), head, 'a').scale).toEqual({ low: -1, high: 1, label: 'a' })
})
