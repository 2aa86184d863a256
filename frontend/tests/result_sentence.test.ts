import { expect, it } from 'vitest'

import type { AnalysisResult, Findings, StoryLine } from '../src/api'
import { en, type MessageKey } from '../src/messages/en'
import { resultSentence, summariseMainField } from '../src/views/result_sentence'

const array = (values: number[], dims = ['layer', 'head']) => ({ values: Float32Array.from(values), shape: [values.length], dims })
const described = (null_ = '') => ({ dims: [], definition: '', null: null_ })
const result = (arrays: AnalysisResult['arrays'], fields: AnalysisResult['fields']): AnalysisResult => ({ name: 'energy', question: '', attrs: {}, coords: {}, fields, pictures: [], texts: {}, left_out: [], arrays })
const texts = {
  message: (key: MessageKey, parameters: Record<string, string> = {}) => en[key].replace(/\{(\w+)\}/g, (_, name: string) => parameters[name]!),
  render: String, displayName: (name: unknown) => String(name).replaceAll('_', ' '),
}

it('summarises the first field that is compared with a null', () => {
  const measured = result({ energy: array([1, 2]), cosine: array([0.5, NaN, -0.25, 3]), cosine_null: array([0, 0.5, 1], ['draw']) }, { energy: described(), cosine: described('cosine_null'), cosine_null: described() })
  expect(summariseMainField(measured)).toEqual({ field: 'cosine', dims: ['layer', 'head'], middle: 0.5, low: -0.25, high: 3, null: 0.5 })
  expect(resultSentence(measured, texts, null, {})).toBe('The median cosine over layer × head is 0.5 (-0.25 to 3); that of the null is 0.5.')
})

it('summarises the first field with numbers if no field has a null', () => {
  const names = result({ empty: array([NaN]), some_share: array([0.25], []) }, { labels: described(), empty: described(), some_share: described() })
  expect(resultSentence(names, texts, null, {})).toBe('The some share is 0.25.')
  const ofOneText = result({ loss: array([3.44], ['text']) }, { loss: described() })
  expect(resultSentence(ofOneText, texts, null, {})).toBe('The loss is 3.44.')
  expect(resultSentence(result({ empty: array([NaN]) }, { empty: described() }), texts, null, {})).toBe('')
})

it('prefers a significant finding, then the line of the story', () => {
  const measured = result({ energy: array([1]) }, { energy: described() })
  const story = { movement: { name: 'movement', title: 'Movement', sentence: 'to the sea', deeper: 'rheoscope analyse energy', needs: [] } as StoryLine }
  expect(resultSentence(measured, texts, null, story)).toBe('Movement: to the sea.')
  const finding = (analysis: string) => ({ findings: [{ text: 'Tokens sink', analysis, q: 0.01 }], held: '' }) as Findings
  expect(resultSentence(measured, texts, finding('energy'), story)).toBe('Tokens sink')
  expect(resultSentence(measured, texts, finding('scores'), story)).toBe('Movement: to the sea.')
})
