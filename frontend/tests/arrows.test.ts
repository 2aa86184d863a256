import { expect, it } from 'vitest'

import { START, viewMatrix } from '../src/cloud/camera'
import { coloursByAgreement, coloursBySense } from '../src/cloud/token_colours'
import { headArrows, arrowTip, couplingAt, couplingArrows, arrowScale } from '../src/cloud/arrows'
import type { AnalysisResult, TraceInfo } from '../src/api'

const points = Float32Array.of(0, 0, 0, 1, 1, 1, /* step 1 */ 2, 2, 2, 3, 3, 3)
const steps = ['embed', 'L0.resid_mid', 'L0.resid_post', 'L1.resid_mid', 'L1.resid_post']
const makeResult = (values: number[], coords: Record<string, unknown[]>, name = 'coupling', dims = ['step', 'token']): AnalysisResult => ({
  name: 'transport', question: '', sentence: '', attrs: {}, fields: {}, pictures: [], texts: {}, left_out: [],
  coords: Object.fromEntries(Object.entries(coords).map(([dim, values]) => [dim, { dims: [dim], values: values }])),
  arrays: { [name]: { values: Float32Array.from(values), shape: [values.length / coords.token!.length, coords.token!.length], dims } },
})

it('arrows start where the head reads and have the given length', () => {
  const moves = { moves: Float32Array.of(0.2, 0, 0, 0, -0.4, 0), step: 'embed', share: 1, edited: false }
  const [first, second] = headArrows(moves, points, 2, 1, 2, 10)
  expect(first!.from).toEqual([2, 2, 2])
  expect(first!.to[0]).toBeCloseTo(3)
  expect(second!.to[1]).toBeCloseTo(1)
})

it('arrows are scaled by a round factor', () => {
  for (const length of [0.0031, 0.02, 0.11, 0.7, 13]) {
    const factor = arrowScale(new Float32Array(30).fill(length / Math.sqrt(3)), 1)
    expect(length * factor).toBeGreaterThan(0.1)
    expect(length * factor).toBeLessThanOrEqual(0.3001)
    expect([1, 2, 5]).toContain(Math.round(factor / 10 ** Math.floor(Math.log10(factor * 1.0001))))
  }
  expect(arrowScale(new Float32Array(6), 1)).toBe(1)
})

it('a coupling lists tokens with another optimal partner by position', () => {
  const result = makeResult([0, 1, 2, 0, 2, 1], { point: ['embed', 'L0.resid_post', 'L1.resid_post'], token: [1, 3, 4] })
  expect(couplingAt(result, steps, 1)).toEqual({ from: 'embed', to: 'L0.resid_post', pairs: [], tokens: 3 })
  const laterCoupling = { from: 'L0.resid_post', to: 'L1.resid_post', pairs: [[3, 4], [4, 3]], tokens: 3 }
  expect(couplingAt(result, steps, 2)).toEqual(laterCoupling)
  expect(couplingAt(result, steps, 4)).toEqual(laterCoupling)
})

it('a coupling arrow ends at the partner after the step', () => {
  const [line] = couplingArrows({ from: 'a', to: 'b', pairs: [[0, 1]], tokens: 2 }, points, 2, ['a', 'b'])
  expect([line!.from, line!.to]).toEqual([[0, 0, 0], [3, 3, 3]])
})

it('the tip of an arrow faces the camera', () => {
  const arrow = { token: 0, from: [0, 0, 0] as [number, number, number], to: [1, 0, 0] as [number, number, number], colour: '#000000', barbed: true }
  const [a, b] = arrowTip(arrow, START)
  const m = viewMatrix(START)
  const depth = (p: number[]) => m[2]! * p[0]! + m[6]! * p[1]! + m[10]! * p[2]!
  expect(a[0]).toBeCloseTo(b[0])
  expect(a[0]).toBeLessThan(1)
  expect(depth(a) - depth(b)).toBeCloseTo(0)
})

const info = { steps: ['embed', 'L0.resid_post'], tokens: ['The', 'bank', 'bank', 'sea', '.', '.'].map((text) => ({ text, shown: text, massive: false })) } as TraceInfo

it('colours repeated words by cluster', () => {
  const result = makeResult([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], { point: info.steps, token: [0, 1, 2, 3, 4, 5] }, 'lineage', ['point', 'token'])
  const colours = (step: number) => {
    const { colours } = coloursBySense(result, 'lineage', info, step)
    return info.tokens.map((_, token) => [...colours.subarray(token * 3, token * 3 + 3)].join())
  }
  expect(colours(0)[1]).toBe(colours(0)[2])
  expect(colours(1)[1]).not.toBe(colours(1)[2])
  expect(colours(1)[1]).toBe(colours(0)[1])
  for (const token of [3, 4, 5]) expect(colours(1)[token]).toBe(colours(1)[0])
})

it('uses the same scale of agreement for all heads', () => {
  expect(coloursByAgreement(Float32Array.of(-1, 0, 1, NaN, 0, 0), info, 'a').scale).toEqual({ low: -1, high: 1, label: 'a' })
})
