import { expect, it } from 'vitest'

import type { GeneratedToken } from '../src/api'
import { DARK } from '../src/palette'
import { cloudOf, promptWeights, readLabels, readPaths, signed, sourceArcs, tokenColours, type GenerationState } from '../src/views/generation_flow'

const token = (index: number, more: Partial<GeneratedToken> = {}): GeneratedToken => ({
  index, shown: `new${index}`, position: index + 1, probability: 0.5, path: [[0, 0, index], [1, 0, index]], lens: [], decided_at: '', logit_above_mean: 1, from_prompt: 1, from_answer: 0,
  by_prompt_token: [index + 1, -1], sources: [], heads: [], ...more,
})
const state: GenerationState = {
  prompt: { tokens: ['a', 'b'], read: ['a', 'b'], steps: ['embed', 'L0.resid_post'], lens_steps: [], paths: [[[0, 0, 0], [1, 0, 0]], [[0, 1, 0], [1, 1, 0]]] },
  tokens: [token(0), token(1), token(2)], answer: null,
}

it('a token joins the cloud when the model has read it', () => {
  expect(readPaths(state)).toHaveLength(4)
  expect(readLabels(state)).toEqual(['a', 'b', 'new0', 'new1'])
  const { points, tokens, steps } = cloudOf(state)
  expect([tokens, steps, points.length]).toEqual([4, 2, 24])
  expect(points[(1 * 4 + 3) * 3]! - points[3 * 3]!).toBeGreaterThan(0) // the path of the last token moves along the first axis
  expect(readPaths({ ...state, tokens: [] })).toHaveLength(2)
})

it('the prompt is grey and new tokens are coloured', () => {
  const colours = tokenColours(2, 4, DARK)
  expect([...colours.slice(0, 3)]).toEqual([...colours.slice(3, 6)])
  expect([...colours.slice(6, 9)]).not.toEqual([...colours.slice(0, 3)])
})

it('weights of the prompt are those of one token or of the whole answer', () => {
  expect(promptWeights(state, 0)).toEqual([1, -1])
  expect(promptWeights(state, null)).toEqual([1, -0.5])
  expect(promptWeights({ ...state, tokens: [] }, null)).toEqual([0, 0])
})

it('arcs lead to tokens of the same text', () => {
  const sources = [{ position: 0, shown: 'a', value: 2, cross: false }, { position: 1, shown: 'b', value: -1, cross: true }, { position: 3, shown: 'x', value: 1, cross: false }]
  expect(sourceArcs(token(2, { sources }))).toEqual([{ from: 3, to: 0, weight: 1 }])
  expect([signed(1.26), signed(-0.5)]).toEqual(['+1.3', '−0.5'])
})
