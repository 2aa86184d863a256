/** Colours of tokens, and their scale. */

import { smallestRange } from '../picture/scale'
import { orderColour, css, clusterColour, type Rgb } from '../palette'
import type { AnalysisResult, Field, TraceInfo } from '../api'

export interface TokenColours { colours: Uint8Array; legend: { name: string; colour: string }[]; scale: { low: number; high: number; label: string; /** The values differ only by rounding. */ isRounding?: boolean } | null }

const fillColours = (tokens: number, colourOfToken: (token: number) => Rgb): Uint8Array => {
  const out = new Uint8Array(tokens * 3)
  for (let token = 0; token < tokens; token++) out.set(colourOfToken(token), token * 3)
  return out
}

/** One colour per distinct token, in order of appearance. `order` has the tokens that have a colour already. */
export function coloursByToken(info: TraceInfo, order = new Map<string, number>()): TokenColours {
  for (const { text } of info.tokens) if (!order.has(text)) order.set(text, order.size)
  return { colours: fillColours(info.tokens.length, (token) => clusterColour(order.get(info.tokens[token]!.text)!)), legend: [], scale: null }
}

export function coloursByPosition(info: TraceInfo, label: string): TokenColours {
  const last = Math.max(1, info.tokens.length - 1)
  return { colours: fillColours(info.tokens.length, (token) => orderColour(token / last)), legend: [], scale: { low: 0, high: last, label } }
}

/** The row of a field that belongs to a step: by name if the rows have names, else by relative position. */
export function rowAt(result: AnalysisResult, field: Field, info: TraceInfo, step: number): number {
  const rows = field.shape[0]!
  const dim = field.dims[0]!
  const names = result.coords[dim]?.values.map(String)
  const exactRow = names?.indexOf(info.steps[step]!) ?? -1
  if (exactRow >= 0) return exactRow
  const endingRow = names?.findIndex((name) => name.endsWith(info.steps[step]!)) ?? -1
  if (endingRow >= 0) return endingRow
  return Math.max(0, Math.min(rows - 1, Math.round((step / Math.max(1, info.steps.length - 1)) * rows - (rows < info.steps.length ? 0.5 : 0))))
}

/** The values of a field at a step, one per token of the text (NaN if missing). */
export function valuesAt(result: AnalysisResult, field: Field, info: TraceInfo, step: number): Float32Array {
  const count = field.shape[field.shape.length - 1]!
  const row = field.dims.length > 1 ? rowAt(result, field, info, step) : 0
  const values = field.values.subarray(row * count, (row + 1) * count)
  if (count === info.tokens.length) return values
  const out = new Float32Array(info.tokens.length).fill(NaN)
  const positions = result.coords.token?.values ?? []
  values.forEach((value, index) => {
    const position = Number(result.coords.position?.values[index] ?? positions[index])
    if (Number.isInteger(position) && position < out.length) out[position] = value
  })
  return out
}

const MISSING_COLOUR: Rgb = [138, 147, 166]

export function coloursByLabel(result: AnalysisResult, name: string, info: TraceInfo, step: number): TokenColours {
  const values = valuesAt(result, result.arrays[name]!, info, step)
  return { colours: fillColours(info.tokens.length, (token) => (Number.isFinite(values[token]!) ? clusterColour(values[token]!) : MISSING_COLOUR)), legend: [], scale: null }
}

export function coloursByValue(result: AnalysisResult, name: string, info: TraceInfo, step: number): TokenColours {
  const field = result.arrays[name]!
  const finiteValues = Array.from(field.values).filter(Number.isFinite).sort((a, b) => a - b)
  const [low, high] = [finiteValues[Math.floor(finiteValues.length * 0.02)] ?? 0, finiteValues[Math.floor(finiteValues.length * 0.98)] ?? 1]
  const values = valuesAt(result, field, info, step)
  const range = Math.max(high - low, smallestRange(low, high))
  const colourOfToken = (token: number): Rgb => (Number.isFinite(values[token]!) ? orderColour((values[token]! - low) / range) : MISSING_COLOUR)
  return { colours: fillColours(info.tokens.length, colourOfToken), legend: [], scale: { low, high, label: name.replaceAll('_', ' '), isRounding: high > low && high - low < range } }
}

/** Colours by the agreement of each query of a head, from −1 to 1. */
export function coloursByAgreement(values: Float32Array, info: TraceInfo, label: string): TokenColours {
  const colourOfToken = (token: number): Rgb => (Number.isFinite(values[token]!) ? orderColour((values[token]! + 1) / 2) : MISSING_COLOUR)
  return { colours: fillColours(info.tokens.length, colourOfToken), legend: [], scale: { low: -1, high: 1, label } }
}

/** Repeated words get one colour per cluster in which they occur. Other words are grey. */
export function coloursBySense(result: AnalysisResult, name: string, info: TraceInfo, step: number): TokenColours {
  const field = result.arrays[name]!
  const words = info.tokens.map(({ text }) => text.trim().toLowerCase())
  const isRepeated = (token: number) => /\p{L}/u.test(words[token]!) && words.indexOf(words[token]!) !== words.lastIndexOf(words[token]!)
  const senses = new Map<string, number>()
  const senseOf = (values: Float32Array, token: number): number => {
    const sense = `${words[token]} ${values[token]}`
    if (!senses.has(sense)) senses.set(sense, senses.size)
    return senses.get(sense)!
  }
  for (let index = 0; index < info.steps.length; index++) {
    const values = valuesAt(result, field, info, index)
    info.tokens.forEach((_, token) => isRepeated(token) && Number.isFinite(values[token]!) && senseOf(values, token))
  }
  const values = valuesAt(result, field, info, step)
  const colourOfToken = (token: number): Rgb => (isRepeated(token) && Number.isFinite(values[token]!) ? clusterColour(senseOf(values, token)) : MISSING_COLOUR)
  return { colours: fillColours(info.tokens.length, colourOfToken), legend: [], scale: null }
}

/** CSS gradient of the ordered colours. */
export const gradientCss = (): string => `linear-gradient(90deg, ${Array.from({ length: 8 }, (_, k) => css(orderColour(k / 7))).join(', ')})`
