/** A graph of heads: nodes are heads, edges are their composition scores. */

import type { AnalysisResult } from '../api'

export const KINDS = ['q', 'k', 'v'] as const
export type Kind = (typeof KINDS)[number]
export interface Node { name: string; layer: number; head: number; x: number; y: number }
export interface Edge { from: number; to: number; strength: number }
export interface Graph { nodes: Node[]; layers: number; heads: number; radius: number; height: number }

const MARGIN = { left: 26, right: 26, top: 14, bottom: 26 }

/** Layers from left to right, the heads of a layer from top to bottom. */
export function compositionGraph(names: string[], width: number): Graph {
  const indices = names.map((name) => (/L(\d+)\.H(\d+)/.exec(name) ?? ['', '0', '0']).slice(1).map(Number) as [number, number])
  const layers = Math.max(0, ...indices.map(([layer]) => layer)) + 1
  const heads = Math.max(0, ...indices.map(([, head]) => head)) + 1
  const rowHeight = Math.max(12, Math.min(56, 480 / heads))
  const columnWidth = (width - MARGIN.left - MARGIN.right) / Math.max(1, layers - 1)
  const nodes = indices.map(([layer, head], index) => ({ name: names[index]!, layer, head, x: MARGIN.left + layer * columnWidth, y: MARGIN.top + (head + 0.5) * rowHeight }))
  return { nodes, layers, heads, radius: Math.max(3, Math.min(9, rowHeight * 0.28, columnWidth * 0.2)), height: MARGIN.top + heads * rowHeight + MARGIN.bottom }
}

/** The strongest edges above the null. The strongest is last, so that it is drawn on top. */
export function strongestEdges(result: AnalysisResult, kind: Kind, limit: number): Edge[] {
  const field = result.arrays[kind]
  if (!field) return []
  const count = field.shape[1]!
  const edges: Edge[] = []
  field.values.forEach((strength, index) => {
    if (strength > 0) edges.push({ from: Math.floor(index / count), to: index % count, strength })
  })
  return edges.sort((a, b) => b.strength - a.strength).slice(0, limit).reverse()
}

/** SVG path of an edge. */
export function edgePath(a: Node, b: Node): string {
  const bend = (b.x - a.x) * 0.5
  return `M${a.x.toFixed(1)} ${a.y.toFixed(1)}C${(a.x + bend).toFixed(1)} ${a.y.toFixed(1)} ${(b.x - bend).toFixed(1)} ${b.y.toFixed(1)} ${b.x.toFixed(1)} ${b.y.toFixed(1)}`
}
