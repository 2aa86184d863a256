import { expect, it } from 'vitest'

import { tourHead, TOUR_STEPS, tourSelection, tourStep, wordsAlongTheWay, type TourFacts } from '../src/tour_steps'
import type { TraceInfo } from '../src/api'

const info = { layers: 2, heads: 4, steps: ['embed', 'L0.resid_mid', 'L0.resid_post', 'L1.resid_mid', 'L1.resid_post'], tokens: [{}, {}, {}] } as unknown as TraceInfo
const facts: TourFacts = { layer: 1, head: 3, read: { token: 0, weight: 0.4 }, separated: { first: 0, second: 2, before: 0.1, after: 0.9 } }

it('names the head that contributes most, or one in the middle of a model that predicts nothing', () => {
  expect(tourHead(['L1.mlp', 'L0.H2', 'L1.H3'], info)).toEqual({ layer: 0, head: 2 })
  expect(tourHead([], info)).toEqual({ layer: 1, head: 0 })
})

it('shows a head at the step that it reads, and the prediction at the last step', () => {
  expect(tourSelection('operators', facts, info)).toMatchObject({ layer: 1, head: 3, token: 2, step: 2, show: ['arcs', 'moves'] })
  expect(tourSelection('operators', { ...facts, layer: 0 }, info).step).toBe(0)
  for (const step of ['flow', 'edit'] as const) expect(tourSelection(step, facts, info)).toMatchObject({ step: 4, layer: null, token: null })
})

it('pins a pair as a query and a key that it can attend to', () => {
  expect(tourSelection('projection', facts, info)).toMatchObject({ token: 2, second: 0 })
  expect(tourSelection('projection', { ...facts, separated: null }, info)).toMatchObject({ token: null, second: null })
})

it('every step of the tour selects everything that another one selects', () => {
  for (const step of TOUR_STEPS) expect(Object.keys(tourSelection(step, facts, info))).toEqual(expect.arrayContaining(['layer', 'head', 'token', 'second', 'step', 'show']))
})

it('a number outside the tour means its first or its last step', () => {
  expect([0, 1, 5, 99].map(tourStep)).toEqual(['space', 'space', 'edit', 'edit'])
})

it('lists the words on the way without repetitions', () => {
  expect(wordsAlongTheWay(['the', 'the', 'first', 'same', 'same', 'river', 'river'])).toBe('the → first → same → river')
  expect(wordsAlongTheWay(['a', 'b', 'c', 'd', 'e'])).toBe('b → c → d → e')
})
