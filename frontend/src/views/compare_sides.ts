/** The two sides of a comparison: what it is compared with, and what is shown. */

import type { GalleryEntry, TraceInfo } from '../api'
import type { Text } from '../messages/message'
import type { MessageKey } from '../messages'

interface Names { compareWith: string; selectedModel: string; message(key: MessageKey): string; render(text: Text): string; modelName(id: string): Text }

const MAX_TEXT_LETTERS = 60

/** A text in quotes, shortened between two words. */
export function quoted(text: string, limit = MAX_TEXT_LETTERS): string {
  if (text.length <= limit) return `“${text}”`
  return `“${text.slice(0, limit).replace(/\s+\S*$/, '')} …”`
}

/** The names of both sides: before and after an edit, two texts, or two models. Models with equal weights share a trace, so they are named by the link. */
export function sideNames(studio: Names, comparison: TraceInfo, shown: TraceInfo): [string, string] {
  const { compareWith } = studio
  if (compareWith === 'before') return [studio.message('before'), studio.message('after')]
  if (compareWith.startsWith('text:')) return [quoted(comparison.text), quoted(shown.text)]
  const nameOf = (model: string): string => shortPath(studio.render(studio.modelName(model)))
  if (compareWith === 'untrained') return [studio.message('compare_untrained'), nameOf(studio.selectedModel)]
  const ids: [string, string] = [compareWith.slice('model:'.length), studio.selectedModel]
  const names: [string, string] = [nameOf(ids[0]), nameOf(ids[1])]
  return names[0] === names[1] ? [shortPath(ids[0]), shortPath(ids[1])] : names
}

/** The last two parts of a path, which tell the checkpoints of a run apart. */
export const shortPath = (source: string): string => source.split('/').filter(Boolean).slice(-2).join('/')

/** Models and checkpoints that a model can be compared with, as values of the link and names. */
export const comparable = (entries: GalleryEntry[], selected: string, render: (text: Text) => string): [string, string][] =>
  entries.filter(({ id, status }) => id !== selected && status !== 'refused').map(({ id, source, name }) => [`model:${id}`, source.includes('/') ? shortPath(source) : render(name)])
