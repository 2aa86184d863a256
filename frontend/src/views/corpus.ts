/** A corpus on the page: which fields of heads it has, all heads in order with their intervals, one head's distribution. */

import { choicesOf, sliceAt, type Choice } from '../heads/slices'
import { axis, line, panel } from '../picture/made'
import { number } from '../picture/scale'
import type { Link } from '../link'
import type { Catalogue, CorpusExample, CorpusField, CorpusHead, CorpusSaid, Mark, Panel } from '../wire'

/** One map of a field: every array of it as layer × head. */
export interface HeadsOfCorpus { mean: Float32Array; low: Float32Array; high: Float32Array; texts: Float32Array; null: Float32Array | null; heads: number }

/** Fields of heads that the corpus holds, in the catalogue's order. */
export const held = (catalogue: Catalogue | null, corpus: CorpusSaid | null): Choice[] => choicesOf(catalogue).filter((one) => corpus?.fields.includes(one.value))

export function mapOf({ arrays }: CorpusField, slice: number): HeadsOfCorpus {
  const at = (name: string) => sliceAt(arrays[name]!, slice)
  const { mean } = arrays
  return { mean: at('mean'), low: at('low'), high: at('high'), texts: at('texts'), null: arrays.null ? at('null') : null, heads: mean!.shape[mean!.dims.indexOf('head')]! }
}

export const headName = (cell: number, heads: number): string => `L${Math.floor(cell / heads)}.H${cell % heads}`

/** A mean with its interval, as it is said; a mean of few texts has none. */
export const ranged = (mean: number, low: number, high: number): string =>
  Number.isFinite(low) && Number.isFinite(high) ? `${number(mean)} (${number(low)} – ${number(high)})` : number(mean)

/** Cells with a mean, the largest first. */
export const inOrder = (mean: Float32Array): number[] =>
  [...mean.keys()].filter((cell) => Number.isFinite(mean[cell]!)).sort((a, b) => mean[b]! - mean[a]! || a - b)

interface Named { title: string; about: string; x: string; y: string; mean: string; null: string }

/** Every head in the order of its mean, with its interval; what chance gives of it stands at the same place. */
export function ordered(map: HeadsOfCorpus, chosen: number | null, said: Named): Panel {
  const cells = inOrder(map.mean)
  const of = (values: Float32Array) => cells.map((cell) => values[cell]!)
  const edge = (values: Float32Array) => cells.map((cell) => (Number.isFinite(values[cell]!) ? values[cell]! : map.mean[cell]!))
  const places = cells.map((_, at) => at)
  const band: Mark = { mark: 'shape', name: '', x: [...places, ...[...places].reverse()], y: [...edge(map.low), ...edge(map.high).reverse()], colour: 'first', opacity: 0.25, tip: '' }
  const means = { ...line('', of(map.mean)), tips: cells.map((cell) => `${headName(cell, map.heads)}: ${ranged(map.mean[cell]!, map.low[cell]!, map.high[cell]!)}`) } as Mark
  const at = chosen === null ? -1 : cells.indexOf(chosen)
  return panel(said.title, [
    band, ...(map.null ? [line(said.null, of(map.null), 'null', 'dots')] : []), means,
    ...(at >= 0 ? [line('', [map.mean[cells[at]!]!], 'second', 'dots', [at]), { mark: 'word', x: at, y: map.mean[cells[at]!]!, text: headName(cells[at]!, map.heads), side: at < cells.length / 8 ? 'right' : 'above', strong: true } as Mark] : []),
  ], { about: said.about, x: axis({ label: said.x }), y: axis({ label: said.y }), height: 0.9 })
}

/** How a field of one head is distributed over the corpus; what chance gives of it as a line. */
export function distributed({ mean, distribution: { edges, shares, null: none } }: CorpusHead, said: Named): Panel {
  const bars = shares.map((share, at): Mark => {
    const [from, to] = [edges[at]!, edges[at + 1]!]
    return { mark: 'shape', name: '', x: [from, to, to, from], y: [0, 0, share, share], colour: 'first', opacity: 0.55, tip: `${number(from)} – ${number(to)}: ${percent(share)}` }
  })
  const steps = (values: number[]) => line(said.null, values.flatMap((y) => [y, y]), 'null', 'dashed', values.flatMap((_, at) => [edges[at]!, edges[at + 1]!]))
  const top = Math.max(...shares, ...(none ?? []))
  const inside = mean !== null && mean >= edges[0]! && mean <= edges.at(-1)!
  const marks = [...bars, ...(none ? [steps(none)] : []), ...(inside ? [line(said.mean, [0, top], 'second', 'solid', [mean, mean])] : [])]
  return panel(said.title, marks, { about: said.about, x: axis({ label: said.x, low: edges[0], high: edges.at(-1) }), y: axis({ label: said.y, low: 0 }), height: 0.9 })
}

export const percent = (share: number): string => `${share < 0.0995 ? Number((100 * share).toFixed(1)) : Math.round(100 * share)} %`

/** What the page becomes when an example is opened: its text in the corpus's model, with the head, the field and the token chosen. */
export function opening(example: CorpusExample, corpus: CorpusSaid, at: { layer: number; head: number; field: string }, usual: string, longest: number): Partial<Link> {
  return {
    model: corpus.model === usual ? '' : corpus.model, text: example.text, window: null, beside: '', edits: [], view: 'heads', step: 0,
    token: example.tokens <= longest ? example.token : null, second: null, ...at,
  }
}
