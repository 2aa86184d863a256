import { expect, it } from 'vitest'

import type { AnalysisResult, Findings, StoryLine } from '../src/api'
import { en, type MessageKey } from '../src/messages/en'
import { resultSentence } from '../src/views/result_sentence'

const result: AnalysisResult = { name: 'energy', question: '', sentence: '2 heads are gradient-like.', attrs: {}, coords: {}, fields: {}, pictures: [], texts: {}, left_out: [], arrays: {} }
const texts = { message: (key: MessageKey, parameters: Record<string, string> = {}) => en[key].replace(/\{(\w+)\}/g, (_, name: string) => parameters[name]!), render: String }
const story = { movement: { name: 'movement', title: 'Movement', sentence: 'to the sea', deeper: 'rheoscope analyse energy', needs: [] } as StoryLine }
const finding = (analysis: string) => ({ findings: [{ text: 'Tokens sink', analysis, q: 0.01 }], held: '' }) as Findings

it('prefers a significant finding', () => {
  expect(resultSentence(result, texts, finding('energy'), story)).toBe('Tokens sink')
})

it('takes the sentence of the result without a finding of this analysis', () => {
  expect(resultSentence(result, texts, finding('scores'), story)).toBe('2 heads are gradient-like.')
  expect(resultSentence(result, texts, null, {})).toBe('2 heads are gradient-like.')
})

it('takes the line of the story for a result without a sentence', () => {
  expect(resultSentence({ ...result, sentence: '' }, texts, null, story)).toBe('Movement: to the sea.')
  expect(resultSentence({ ...result, sentence: '' }, texts, null, {})).toBe('')
})
