/** Colours of tokens, and the key that says what they mean. */

import { along, css, ofCluster, type Rgb } from '../palette'
import type { Answer, Field, Head } from '../wire'

export interface Tints { colours: Uint8Array; key: { name: string; colour: string }[]; scale: { low: number; high: number; label: string } | null }

const filled = (tokens: number, tint: (token: number) => Rgb): Uint8Array => {
  const out = new Uint8Array(tokens * 3)
  for (let token = 0; token < tokens; token++) out.set(tint(token), token * 3)
  return out
}

/** One colour for each distinct token, in the order in which they come. */
export function byToken(head: Head): Tints {
  const seen = new Map<string, number>()
  for (const { text } of head.tokens) if (!seen.has(text)) seen.set(text, seen.size)
  return { colours: filled(head.tokens.length, (token) => ofCluster(seen.get(head.tokens[token]!.text)!)), key: [], scale: null }
}

export function byOrder(head: Head, label: string): Tints {
  const last = Math.max(1, head.tokens.length - 1)
  return { colours: filled(head.tokens.length, (token) => along(token / last)), key: [], scale: { low: 0, high: last, label } }
}

/** Which row of a field belongs to a step: by its name where the field names its rows, else the one as far along. */
export function rowAt(answer: Answer, field: Field, head: Head, step: number): number {
  const rows = field.shape[0]!
  const dim = field.dims[0]!
  const names = answer.coords[dim]?.values.map(String)
  const exact = names?.indexOf(head.steps[step]!) ?? -1
  if (exact >= 0) return exact
  const ending = names?.findIndex((name) => name.endsWith(head.steps[step]!)) ?? -1
  if (ending >= 0) return ending
  return Math.max(0, Math.min(rows - 1, Math.round((step / Math.max(1, head.steps.length - 1)) * rows - (rows < head.steps.length ? 0.5 : 0))))
}

/** The values of a field at a step, one a token of the text (NaN where it has none). */
export function valuesAt(answer: Answer, field: Field, head: Head, step: number): Float32Array {
  const count = field.shape[field.shape.length - 1]!
  const row = field.dims.length > 1 ? rowAt(answer, field, head, step) : 0
  const values = field.values.subarray(row * count, (row + 1) * count)
  if (count === head.tokens.length) return values
  const out = new Float32Array(head.tokens.length).fill(NaN)
  const places = answer.coords.token?.values ?? []
  values.forEach((value, at) => {
    const place = Number(answer.coords.position?.values[at] ?? places[at])
    if (Number.isInteger(place) && place < out.length) out[place] = value
  })
  return out
}

const NONE: Rgb = [138, 147, 166]

export function byLabel(answer: Answer, name: string, head: Head, step: number): Tints {
  const values = valuesAt(answer, answer.arrays[name]!, head, step)
  return { colours: filled(head.tokens.length, (token) => (Number.isFinite(values[token]!) ? ofCluster(values[token]!) : NONE)), key: [], scale: null }
}

export function byValue(answer: Answer, name: string, head: Head, step: number): Tints {
  const field = answer.arrays[name]!
  const there = Array.from(field.values).filter(Number.isFinite).sort((a, b) => a - b)
  const [low, high] = [there[Math.floor(there.length * 0.02)] ?? 0, there[Math.floor(there.length * 0.98)] ?? 1]
  const values = valuesAt(answer, field, head, step)
  const tint = (token: number): Rgb => (Number.isFinite(values[token]!) ? along((values[token]! - low) / (high - low || 1)) : NONE)
  return { colours: filled(head.tokens.length, tint), key: [], scale: { low, high, label: name.replaceAll('_', ' ') } }
}

/** The agreement of every query of a head, from −1 to 1. */
export function byAgreement(values: Float32Array, head: Head, label: string): Tints {
  const tint = (token: number): Rgb => (Number.isFinite(values[token]!) ? along((values[token]! + 1) / 2) : NONE)
  return { colours: filled(head.tokens.length, tint), key: [], scale: { low: -1, high: 1, label } }
}

/** Words that come more than once, a colour for each cluster that an occurrence of one lies in; words that come once have none. */
export function bySense(answer: Answer, name: string, head: Head, step: number): Tints {
  const field = answer.arrays[name]!
  const words = head.tokens.map(({ text }) => text.trim().toLowerCase())
  const often = (token: number) => /\p{L}/u.test(words[token]!) && words.indexOf(words[token]!) !== words.lastIndexOf(words[token]!)
  const senses = new Map<string, number>()
  const senseOf = (values: Float32Array, token: number): number => {
    const sense = `${words[token]} ${values[token]}`
    if (!senses.has(sense)) senses.set(sense, senses.size)
    return senses.get(sense)!
  }
  for (let at = 0; at < head.steps.length; at++) {
    const values = valuesAt(answer, field, head, at)
    head.tokens.forEach((_, token) => often(token) && Number.isFinite(values[token]!) && senseOf(values, token))
  }
  const values = valuesAt(answer, field, head, step)
  const tint = (token: number): Rgb => (often(token) && Number.isFinite(values[token]!) ? ofCluster(senseOf(values, token)) : NONE)
  return { colours: filled(head.tokens.length, tint), key: [], scale: null }
}

/** Words for a bar that runs over the ordered colours. */
export const gradient = (): string => `linear-gradient(90deg, ${Array.from({ length: 8 }, (_, k) => css(along(k / 7))).join(', ')})`
