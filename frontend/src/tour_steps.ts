/** The tour of ideas: what each step selects, and the facts of the text that its sentences name. */

import type { TraceInfo } from './api'
import type { Link } from './link'
import type { OpenTrace } from './open_trace.svelte'

export const TOUR_STEPS = ['space', 'operators', 'projection', 'flow', 'edit'] as const
export type TourStep = (typeof TOUR_STEPS)[number]

/** What the tour says about a text: the head that contributes most to the prediction, and what it does. */
export interface TourFacts {
  layer: number
  head: number
  /** The token that the last token attends to most, with its attention weight. */
  read: { token: number; weight: number } | null
  /** Two tokens that are near in the cloud and far apart as keys of the head, as quantiles of their distances among all pairs. */
  separated: { first: number; second: number; before: number; after: number } | null
}

/** The step of a link: 1 is the first. */
export const tourStep = (number: number): TourStep => TOUR_STEPS[Math.max(1, Math.min(TOUR_STEPS.length, number)) - 1]!

/** The first head among the components that write the prediction, or a head in the middle of a model that predicts no token. */
export function tourHead(written: string[], { layers }: TraceInfo): { layer: number; head: number } {
  const match = written.map((component) => /^L(\d+)\.H(\d+)$/.exec(component)).find((result) => result !== null)
  return match ? { layer: Number(match[1]), head: Number(match[2]) } : { layer: Math.floor(layers / 2), head: 0 }
}

export async function loadTourFacts({ client, id, written }: OpenTrace, info: TraceInfo): Promise<TourFacts> {
  const { layer, head } = tourHead(written, info)
  const last = info.tokens.length - 1
  const [weights, images] = await Promise.all([client.weights(id, layer, head, 'weights').catch(() => null), client.images(id, layer, head).catch(() => null)])
  const row = weights ? [...weights.values.subarray(last * (last + 1), (last + 1) ** 2)].map((weight) => weight || 0) : []
  const token = row.indexOf(Math.max(...row))
  const pairs = images?.pairs.key.separated ?? []
  const separated = pairs.find(({ first, second }) => info.tokens[first]?.shown !== info.tokens[second]?.shown) ?? pairs[0] ?? null
  return { layer, head, read: token < 0 ? null : { token, weight: row[token]! }, separated }
}

/** What a step of the tour selects. The head reads the step before its layer. */
export function tourSelection(step: TourStep, { layer, head, separated }: TourFacts, { steps, tokens }: TraceInfo): Partial<Link> {
  const last = steps.length - 1
  const input = Math.max(0, steps.findIndex((name) => name.startsWith(`L${layer}.`)) - 1)
  const nothing = { layer: null, head: null, token: null, second: null }
  switch (step) {
    case 'space': return { ...nothing, step: 0, show: ['arcs'] }
    case 'operators': return { layer, head, token: tokens.length - 1, second: null, step: input, view: 'heads', show: ['arcs', 'moves'] }
    case 'projection': return { layer, head, token: separated && Math.max(separated.first, separated.second), second: separated && Math.min(separated.first, separated.second), step: input, view: 'heads', show: [] }
    case 'flow': return { ...nothing, step: last, show: ['arcs'] }
    case 'edit': return { ...nothing, step: last, view: 'heads', show: ['arcs'] }
  }
}

/** The words that the last token would predict along its way, without repetitions, at most the last four. */
export const wordsAlongTheWay = (words: string[]): string => words.filter((word, index) => word !== words[index - 1]).slice(-4).join(' → ')
