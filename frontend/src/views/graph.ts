/** Heads as nodes, layer by layer, and what they write into later heads as edges. */

import type { Answer } from '../wire'

export const KINDS = ['q', 'k', 'v'] as const
export type Kind = (typeof KINDS)[number]
export interface Node { name: string; layer: number; head: number; x: number; y: number }
export interface Edge { from: number; to: number; strength: number }
export interface Graph { nodes: Node[]; layers: number; heads: number; radius: number; height: number }

const MARGIN = { left: 26, right: 26, top: 14, foot: 26 }

/** Layers from left to right, the heads of a layer one under the other. */
export function graphOf(names: string[], width: number): Graph {
  const places = names.map((name) => (/L(\d+)\.H(\d+)/.exec(name) ?? ['', '0', '0']).slice(1).map(Number) as [number, number])
  const layers = Math.max(0, ...places.map(([layer]) => layer)) + 1
  const heads = Math.max(0, ...places.map(([, head]) => head)) + 1
  const tall = Math.max(12, Math.min(56, 480 / heads))
  const wide = (width - MARGIN.left - MARGIN.right) / Math.max(1, layers - 1)
  const nodes = places.map(([layer, head], at) => ({ name: names[at]!, layer, head, x: MARGIN.left + layer * wide, y: MARGIN.top + (head + 0.5) * tall }))
  return { nodes, layers, heads, radius: Math.max(3, Math.min(9, tall * 0.28, wide * 0.2)), height: MARGIN.top + heads * tall + MARGIN.foot }
}

/** The strongest edges of a kind above chance, the strongest last, so that they are drawn on top. */
export function edgesOf(answer: Answer, kind: Kind, most: number): Edge[] {
  const field = answer.arrays[kind]
  if (!field) return []
  const count = field.shape[1]!
  const edges: Edge[] = []
  field.values.forEach((strength, at) => {
    if (strength > 0) edges.push({ from: Math.floor(at / count), to: at % count, strength })
  })
  return edges.sort((a, b) => b.strength - a.strength).slice(0, most).reverse()
}

/** A bow from one node to a later one. */
export function bowOf(a: Node, b: Node): string {
  const bend = (b.x - a.x) * 0.5
  return `M${a.x.toFixed(1)} ${a.y.toFixed(1)}C${(a.x + bend).toFixed(1)} ${a.y.toFixed(1)} ${(b.x - bend).toFixed(1)} ${b.y.toFixed(1)} ${b.x.toFixed(1)} ${b.y.toFixed(1)}`
}
