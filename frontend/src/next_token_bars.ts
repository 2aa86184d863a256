/** The bars of the next token: one per candidate, with its probability before the edits where it is known. */

import type { TokenProbability } from './api'

export interface Bar extends TokenProbability {
  /** A bar with the same key is the same bar, which moves when its rank changes. */
  key: string
  /** null without edits, and for a token that is not listed before the edits. */
  before: number | null
}

/** Different tokens can look the same, so a key counts the tokens with the same look. */
export function barRows(candidates: TokenProbability[], before: TokenProbability[]): Bar[] {
  const earlier = new Map(withKeys(before).map(({ key, probability }) => [key, probability]))
  return withKeys(candidates).map((row) => ({ ...row, before: earlier.get(row.key) ?? null }))
}

const withKeys = (list: TokenProbability[]): (TokenProbability & { key: string })[] =>
  list.map((row, index) => ({ ...row, key: `${row.shown} ${list.slice(0, index).filter(({ shown }) => shown === row.shown).length}` }))
