/** The tokens of an example of a corpus, each with its value for one head. */

import { sliceValues } from '../heads/field_slices'
import type { AnalysisResult, Client, Field, TraceInfo } from '../api'

/** A token and its value (NaN: none). `isMarked`: the example is about this token. */
export interface ValuedToken { text: string; value: number; isMarked: boolean }
export interface HeadField { analysis: string; field: string; slice: number; layer: number; head: number; hasTokens: boolean }

/** Letters that are shown before a marked token, and of the whole passage. */
const LETTERS_BEFORE = 90
const LETTERS = 400

/** The value of every token for a head in a field with one value per token. Tokens that the field leaves out have none (NaN). */
export function fieldValues(result: Pick<AnalysisResult, 'coords' | 'arrays'>, { field: name, slice, layer, head }: HeadField, tokens: number): Float32Array {
  const field = result.arrays[name]!
  const [count, heads] = [field.shape[field.dims.indexOf('token')]!, field.shape[field.dims.indexOf('head')]!]
  const positions = result.coords.token?.values ?? Array.from({ length: count }, (_, k) => k)
  const out = new Float32Array(tokens).fill(NaN)
  for (let k = 0; k < count; k++) out[Number(positions[k])] = sliceValues(field, slice * count + k)[layer * heads + head]!
  return out
}

/** The share of all attention of a head that each token receives: the mean of its column. */
export function attentionReceived({ values, shape }: Field): Float32Array {
  const [queries, keys] = shape as [number, number]
  const out = new Float32Array(keys)
  values.forEach((weight, index) => { if (Number.isFinite(weight)) out[index % keys]! += weight / queries })
  return out
}

/** The tokens of a text around the marked one, or from the beginning, without the special tokens before the text. */
export function passage(info: Pick<TraceInfo, 'text' | 'tokens'>, values: ArrayLike<number>, marked: number | null): ValuedToken[] {
  const texts = info.tokens.map(({ text }) => text)
  const hasPrefix = texts.slice(1).join('') === info.text
  const lengthFrom = (first: number, last: number) => texts.slice(first, last).join('').length
  let first = hasPrefix ? 1 : 0
  while (marked !== null && first < marked && lengthFrom(first, marked) > LETTERS_BEFORE) first++
  let end = first
  while (end < texts.length && lengthFrom(first, end) < LETTERS) end++
  return texts.slice(first, end).map((text, index) => ({ text, value: values[first + index]!, isMarked: first + index === marked }))
}

/** The tokens of an example with their values: those of the field, or the attention that each token receives where the field has one value per text. */
export async function readPassage(client: Client, model: string, example: { text: string; token: number | null }, field: HeadField): Promise<ValuedToken[]> {
  const { id } = await client.trace({ model, text: example.text, edits: [], lines: [] })
  const info = await client.traceInfo(id)
  const values = field.hasTokens
    ? fieldValues(await client.analysis(id, field.analysis), field, info.tokens.length)
    : attentionReceived(await client.weights(id, field.layer, field.head, 'weights'))
  return passage(info, values, example.token)
}

/** The largest absolute value of some passages, which has the strongest colour. */
export const largestValue = (passages: ValuedToken[][]): number => Math.max(0, ...passages.flat().map(({ value }) => (Number.isFinite(value) ? Math.abs(value) : 0)))

/** Percentage of the strongest colour, so that text on it stays readable. */
const STRONGEST = 50

/** The background of a token: blue for positive values, orange for negative ones. */
export function tokenBackground(value: number, largest: number): string {
  const percent = largest > 0 && Number.isFinite(value) ? Math.round((STRONGEST * Math.abs(value)) / largest) : 0
  return percent ? `color-mix(in srgb, ${value > 0 ? '#2f6fbf' : '#d9622b'} ${percent}%, var(--soft))` : 'none'
}
