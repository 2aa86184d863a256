import { expect, it } from 'vitest'

import type { Client, TraceInfo } from '../src/api'
import { attentionReceived, fieldValues, largestValue, passage, readPassage, tokenBackground, type HeadField } from '../src/views/example_tokens'

const field: HeadField = { analysis: 'reversed_attention', field: 'pull', slice: 0, layer: 1, head: 0, hasTokens: true }
const pull = { values: Float32Array.from({ length: 12 }, (_, k) => k), shape: [2, 2, 3], dims: ['layer', 'head', 'token'] }
const info = (words: string[], text = words.slice(1).join('')) => ({ text, tokens: words.map((word) => ({ text: word })) }) as unknown as TraceInfo

it('has the value of every token that a field keeps', () => {
  expect([...fieldValues({ coords: { token: { dims: ['token'], values: [1, 2, 4] } }, arrays: { pull } }, field, 5)]).toEqual([NaN, 6, 7, NaN, 8])
})

it('counts the attention that each token receives', () => {
  const received = attentionReceived({ values: Float32Array.of(1, NaN, 0.25, 0.75), shape: [2, 2], dims: ['query', 'key'] })
  expect([...received]).toEqual([0.625, 0.375])
})

it('shows the tokens around the marked one, without special tokens', () => {
  const tokens = passage(info(['<s>', 'The', ' keys']), [9, 1, 2], 2)
  expect(tokens).toEqual([{ text: 'The', value: 1, isMarked: false }, { text: ' keys', value: 2, isMarked: true }])
  const words = ['<s>', ...Array.from({ length: 200 }, (_, k) => ` ${100 + k}`)]
  const late = passage(info(words), words.map((_, k) => k), 150)
  const marked = late.findIndex(({ isMarked }) => isMarked)
  expect(late[marked]!.value).toBe(150)
  expect(late.slice(0, marked).map(({ text }) => text).join('').length).toBeLessThanOrEqual(90)
  expect(late.length).toBeLessThan(150)
  expect(passage(info(['The', ' keys'], 'The keys'), [1, 2], null).map(({ text }) => text)).toEqual(['The', ' keys'])
})

it('reads the values of the field, or the attention where the field has one value per text', async () => {
  const client = {
    trace: async () => ({ id: 'x' }), traceInfo: async () => info(['<s>', 'The', ' keys']), analysis: async () => ({ coords: {}, arrays: { pull } }),
    weights: async () => ({ values: Float32Array.of(1, 0, 0, 0.5, 0.5, 0, 0, 0.5, 0.5), shape: [3, 3], dims: [] }),
  } as unknown as Client
  const example = { text: 'The keys', token: null }
  expect((await readPassage(client, 'default', example, field)).map(({ value }) => value)).toEqual([7, 8])
  const shares = await readPassage(client, 'default', example, { ...field, hasTokens: false })
  expect(shares.map(({ value }) => Math.round(value * 60))).toEqual([20, 10])
})

it('gives the largest value the strongest colour, which differs by sign', () => {
  const largest = largestValue([[{ text: 'a', value: 1, isMarked: false }], [{ text: 'b', value: -4, isMarked: false }, { text: 'c', value: NaN, isMarked: false }]])
  expect(largest).toBe(4)
  expect(tokenBackground(-4, largest)).toContain('#d9622b 50%')
  expect(tokenBackground(1, largest)).toContain('#2f6fbf 13%')
  expect([tokenBackground(0, largest), tokenBackground(NaN, largest), tokenBackground(0, 0)]).toEqual(['none', 'none', 'none'])
})
