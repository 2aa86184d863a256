import { expect, it } from 'vitest'

import { DEFAULT_LINK } from '../src/link'
import type { AnalysisCatalogue, CorpusExample, CorpusField, CorpusHead, CorpusSummary, Line, Shape } from '../src/api'
import { distributionPanel, corpusFields, sortedHeads, corpusHeadMap, linkToExample, orderedHeadsPanel, formatPercent, formatInterval } from '../src/views/corpus_panels'

const TEXTS = { title: 'all', about: 'all heads', x: 'place', y: 'value', mean: 'mean', null: 'null' }
const array = (values: number[], shape = [2, 2], dims = ['layer', 'head']) => ({ values: Float32Array.from(values), shape, dims })
const corpus = { name: 'run', model: 'gpt2', fields: ['agreement.agreement', 'reversed_attention.pull'] } as CorpusSummary
const example: CorpusExample = { value: 2, text: 'The keys', file: 'a.txt', line: 3, tokens: 40, token: 7, around: ['The', ' keys', ''] }

it('offers the per-head fields of a corpus, also those per token', () => {
  const field = (...dims: string[]) => ({ dims, definition: '' })
  const catalogue = { analyses: [
    { name: 'agreement', fields: { agreement: field('layer', 'head'), agreement_null: field('layer', 'head'), other: field('layer', 'head') } },
    { name: 'reversed_attention', fields: { pull: field('layer', 'head', 'token') } },
  ] } as unknown as AnalysisCatalogue
  expect(corpusFields(catalogue, corpus).map((pointer) => pointer.value)).toEqual(['agreement.agreement', 'reversed_attention.pull'])
  expect(corpusFields(catalogue, null)).toEqual([])
})

it('sorts heads by mean and leaves out heads without one', () => {
  expect(sortedHeads(Float32Array.of(1, NaN, 3, 3))).toEqual([2, 3, 0])
})

it('draws confidence intervals of all heads and marks the selected head', () => {
  const field: CorpusField = { coords: {}, arrays: { mean: array([1, 4, 2, 3]), low: array([0.5, 3.5, NaN, 2.5]), high: array([1.5, 4.5, NaN, 3.5]), texts: array([9, 9, 9, 9]), null: array([0, 0, 0, 0]) } }
  const map = corpusHeadMap(field, 0)
  const panel = orderedHeadsPanel(map, 3, TEXTS)
  const [band, nullDots, means, mark] = panel.marks as [Shape, Line, Line, Line]
  expect(means.y).toEqual([4, 3, 2, 1])
  expect(band.y).toEqual([3.5, 2.5, 2, 0.5, 1.5, 2, 3.5, 4.5]) // too few texts: no interval
  expect(nullDots.name).toBe('null')
  expect(means.tips[1]).toBe('L1.H1: 3 (2.5 – 3.5)')
  expect([mark.x, mark.y]).toEqual([[1], [3]])
  expect(orderedHeadsPanel({ ...map, null: null }, null, TEXTS).marks).toHaveLength(2)
})

it('draws a distribution as bars between its edges', () => {
  const head = { mean: 0.4, distribution: { edges: [0, 0.5, 1], shares: [0.75, 0.25], null: [0.5, 0.5], outside: 0 } } as CorpusHead
  const panel = distributionPanel(head, TEXTS)
  const bars = panel.marks.filter((mark): mark is Shape => mark.mark === 'shape')
  expect(bars.map((bar) => [bar.x[0], bar.x[1], bar.y[2]])).toEqual([[0, 0.5, 0.75], [0.5, 1, 0.25]])
  expect(panel.marks.filter((mark): mark is Line => mark.mark === 'line').map((line) => line.name)).toEqual(['null', 'mean'])
  expect(distributionPanel({ ...head, mean: 7 }, TEXTS).marks.some((mark) => mark.mark === 'line' && mark.name === 'mean')).toBe(false)
})

it('opens an example in the model of the corpus with head, field and token selected', () => {
  const selection = { layer: 2, head: 1, field: 'agreement.agreement' }
  const link = { ...DEFAULT_LINK, ...linkToExample(example, corpus, selection, 'default', 1024) }
  expect(link).toMatchObject({ model: 'gpt2', text: 'The keys', view: 'heads', token: 7, ...selection })
  expect(linkToExample(example, corpus, selection, 'gpt2', 1024).model).toBe('')
  expect(linkToExample(example, corpus, selection, 'gpt2', 10).token).toBeNull() // a window counts its own tokens
})

it('formats a mean and a fraction', () => {
  expect(formatInterval(0.5, NaN, NaN)).toBe('0.5')
  expect([formatPercent(0.004), formatPercent(0.5)]).toEqual(['0.4 %', '50 %'])
})
