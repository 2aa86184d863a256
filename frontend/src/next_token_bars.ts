/** The bars of the next token: one per candidate, with its probability before the edits where it is known. */

import type { TokenProbability } from './api'

export interface Bar extends TokenProbability {
  /** null without edits, and until it is known. */
  before: number | null
}

export function barRows(candidates: TokenProbability[], before: TokenProbability[]): Bar[] {
  const earlier = new Map(before.map(({ id, probability }) => [id, probability]))
  return candidates.map((row) => ({ ...row, before: earlier.get(row.id) ?? null }))
}
