import { expect, it } from 'vitest'

import { USUAL } from '../src/link'
import type { Catalogue, CorpusExample, CorpusField, CorpusHead, CorpusSaid, Line, Shape } from '../src/wire'
import { distributed, held, inOrder, mapOf, opening, ordered, percent, ranged } from '../src/views/corpus'

const SAID = { title: 'all', about: 'all heads', x: 'place', y: 'value', mean: 'mean', null: 'null' }
const array = (values: number[], shape = [2, 2], dims = ['layer', 'head']) => ({ values: Float32Array.from(values), shape, dims })
const corpus = { name: 'run', model: 'gpt2', fields: ['agreement.agreement', 'reversed_attention.pull'] } as CorpusSaid
const example: CorpusExample = { value: 2, text: 'The keys', file: 'a.txt', line: 3, tokens: 40, token: 7, around: ['The', ' keys', ''] }

it('a corpus offers the fields of heads that it holds, those of tokens too', () => {
  const of = (...dims: string[]) => ({ dims, definition: '' })
  const catalogue = { analyses: [
    { name: 'agreement', fields: { agreement: of('layer', 'head'), agreement_null: of('layer', 'head'), other: of('layer', 'head') } },
    { name: 'reversed_attention', fields: { pull: of('layer', 'head', 'token') } },
  ] } as unknown as Catalogue
  expect(held(catalogue, corpus).map((one) => one.value)).toEqual(['agreement.agreement', 'reversed_attention.pull'])
  expect(held(catalogue, null)).toEqual([])
})

it('heads stand in the order of their means, and those without one stand nowhere', () => {
  expect(inOrder(Float32Array.of(1, NaN, 3, 3))).toEqual([2, 3, 0])
})

it('the band of all heads holds their means, and the chosen head is marked', () => {
  const field: CorpusField = { coords: {}, arrays: { mean: array([1, 4, 2, 3]), low: array([0.5, 3.5, NaN, 2.5]), high: array([1.5, 4.5, NaN, 3.5]), texts: array([9, 9, 9, 9]), null: array([0, 0, 0, 0]) } }
  const map = mapOf(field, 0)
  const panel = ordered(map, 3, SAID)
  const [band, none, means, mark] = panel.marks as [Shape, Line, Line, Line]
  expect(means.y).toEqual([4, 3, 2, 1])
  expect(band.y).toEqual([3.5, 2.5, 2, 0.5, 1.5, 2, 3.5, 4.5]) // one text too few: no width
  expect(none.name).toBe('null')
  expect(means.tips[1]).toBe('L1.H1: 3 (2.5 – 3.5)')
  expect([mark.x, mark.y]).toEqual([[1], [3]])
  expect(ordered({ ...map, null: null }, null, SAID).marks).toHaveLength(2)
})

it('bars of a distribution are its shares, between its edges', () => {
  const head = { mean: 0.4, distribution: { edges: [0, 0.5, 1], shares: [0.75, 0.25], null: [0.5, 0.5], outside: 0 } } as CorpusHead
  const panel = distributed(head, SAID)
  const bars = panel.marks.filter((mark): mark is Shape => mark.mark === 'shape')
  expect(bars.map((bar) => [bar.x[0], bar.x[1], bar.y[2]])).toEqual([[0, 0.5, 0.75], [0.5, 1, 0.25]])
  expect(panel.marks.filter((mark): mark is Line => mark.mark === 'line').map((line) => line.name)).toEqual(['null', 'mean'])
  expect(distributed({ ...head, mean: 7 }, SAID).marks.some((mark) => mark.mark === 'line' && mark.name === 'mean')).toBe(false)
})

it('an example opens in the model of the corpus with its head, its field and its token', () => {
  const at = { layer: 2, head: 1, field: 'agreement.agreement' }
  const link = { ...USUAL, ...opening(example, corpus, at, 'default', 1024) }
  expect(link).toMatchObject({ model: 'gpt2', text: 'The keys', view: 'heads', token: 7, ...at })
  expect(opening(example, corpus, at, 'gpt2', 1024).model).toBe('')
  expect(opening(example, corpus, at, 'gpt2', 10).token).toBeNull() // a window of it has tokens of its own
})

it('what is said of a mean and of a share', () => {
  expect(ranged(0.5, NaN, NaN)).toBe('0.5')
  expect([percent(0.004), percent(0.5)]).toEqual(['0.4 %', '50 %'])
})
