/** Panels of a corpus run: all heads sorted by mean, and the distribution of one head. */

import { headFields, sliceValues, type FieldChoice } from '../heads/field_slices'
import { makeAxis, makeLine, makePanel } from '../picture/panel_builders'
import { formatNumber } from '../picture/scale'
import type { Link } from '../link'
import type { AnalysisCatalogue, CorpusExample, CorpusField, CorpusHead, CorpusSummary, Mark, Panel } from '../api'

/** One layer × head map of a field over the corpus. */
export interface CorpusHeadMap { mean: Float32Array; low: Float32Array; high: Float32Array; texts: Float32Array; null: Float32Array | null; heads: number }

/** Per-head fields of the corpus, in the order of the catalogue. */
export const corpusFields = (catalogue: AnalysisCatalogue | null, corpus: CorpusSummary | null): FieldChoice[] => headFields(catalogue).filter((choice) => corpus?.fields.includes(choice.value))

export function corpusHeadMap({ arrays }: CorpusField, slice: number): CorpusHeadMap {
  const index = (name: string) => sliceValues(arrays[name]!, slice)
  const { mean } = arrays
  return { mean: index('mean'), low: index('low'), high: index('high'), texts: index('texts'), null: arrays.null ? index('null') : null, heads: mean!.shape[mean!.dims.indexOf('head')]! }
}

export const headName = (cell: number, heads: number): string => `L${Math.floor(cell / heads)}.H${cell % heads}`

/** A mean with its confidence interval. A mean of too few texts has none. */
export const formatInterval = (mean: number, low: number, high: number): string =>
  Number.isFinite(low) && Number.isFinite(high) ? `${formatNumber(mean)} (${formatNumber(low)} – ${formatNumber(high)})` : formatNumber(mean)

/** Heads with a mean, the largest mean first. */
export const sortedHeads = (mean: Float32Array): number[] =>
  [...mean.keys()].filter((cell) => Number.isFinite(mean[cell]!)).sort((a, b) => mean[b]! - mean[a]! || a - b)

interface PanelTexts { title: string; about: string; x: string; y: string; mean: string; null: string }

/** All heads sorted by mean, with confidence intervals and nulls. */
export function orderedHeadsPanel(map: CorpusHeadMap, selected: number | null, texts: PanelTexts): Panel {
  const cells = sortedHeads(map.mean)
  const valuesOf = (values: Float32Array) => cells.map((cell) => values[cell]!)
  const edgeOf = (values: Float32Array) => cells.map((cell) => (Number.isFinite(values[cell]!) ? values[cell]! : map.mean[cell]!))
  const ranks = cells.map((_, index) => index)
  const band: Mark = { mark: 'shape', name: '', x: [...ranks, ...[...ranks].reverse()], y: [...edgeOf(map.low), ...edgeOf(map.high).reverse()], colour: 'first', opacity: 0.25, tip: '' }
  const means = { ...makeLine('', valuesOf(map.mean)), tips: cells.map((cell) => `${headName(cell, map.heads)}: ${formatInterval(map.mean[cell]!, map.low[cell]!, map.high[cell]!)}`) } as Mark
  const index = selected === null ? -1 : cells.indexOf(selected)
  return makePanel(texts.title, [
    band, ...(map.null ? [makeLine(texts.null, valuesOf(map.null), 'null', 'dots')] : []), means,
    ...(index >= 0 ? [makeLine('', [map.mean[cells[index]!]!], 'second', 'dots', [index]), { mark: 'label', x: index, y: map.mean[cells[index]!]!, text: headName(cells[index]!, map.heads), side: index < cells.length / 8 ? 'right' : 'above', strong: true } as Mark] : []),
  ], { about: texts.about, x: makeAxis({ label: texts.x }), y: makeAxis({ label: texts.y }), height: 0.9 })
}

/** The distribution of a field of one head over the corpus, and its null as a line. */
export function distributionPanel({ mean, distribution: { edges, shares, null: nullShares } }: CorpusHead, texts: PanelTexts): Panel {
  const bars = shares.map((share, index): Mark => {
    const [from, to] = [edges[index]!, edges[index + 1]!]
    return { mark: 'shape', name: '', x: [from, to, to, from], y: [0, 0, share, share], colour: 'first', opacity: 0.55, tip: `${formatNumber(from)} – ${formatNumber(to)}: ${formatPercent(share)}` }
  })
  const stepLine = (values: number[]) => makeLine(texts.null, values.flatMap((y) => [y, y]), 'null', 'dashed', values.flatMap((_, index) => [edges[index]!, edges[index + 1]!]))
  const top = Math.max(...shares, ...(nullShares ?? []))
  const inside = mean !== null && mean >= edges[0]! && mean <= edges.at(-1)!
  const marks = [...bars, ...(nullShares ? [stepLine(nullShares)] : []), ...(inside ? [makeLine(texts.mean, [0, top], 'second', 'solid', [mean, mean])] : [])]
  return makePanel(texts.title, marks, { about: texts.about, x: makeAxis({ label: texts.x, low: edges[0], high: edges.at(-1) }), y: makeAxis({ label: texts.y, low: 0 }), height: 0.9 })
}

export const formatPercent = (share: number): string => `${share < 0.0995 ? Number((100 * share).toFixed(1)) : Math.round(100 * share)} %`

/** The link that opens an example: its text in the model of the corpus, with head, field and token selected. */
export function linkToExample(example: CorpusExample, corpus: CorpusSummary, selection: { layer: number; head: number; field: string }, defaultModel: string, maxTokens: number): Partial<Link> {
  return {
    model: corpus.model === defaultModel ? '' : corpus.model, text: example.text, window: null, compareWith: '', edits: [], view: 'heads', step: 0,
    token: example.tokens <= maxTokens ? example.token : null, second: null, ...selection,
  }
}
