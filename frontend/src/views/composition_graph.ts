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

export const EMBED = 'embed', LOGITS = 'logits'
export type Role = Kind | typeof LOGITS
/** `shift` separates edges between the same nodes through different roles: their distance from the line between, in steps. */
export interface CircuitEdge extends Edge { name: string; role: Role; restores: number; shift: number }

/** The heads of a model between its embedding and its logits: the graph of a circuit. Layer −1 is the embedding. */
export function circuitGraph(layers: number, heads: number, width: number): Graph {
  const names = Array.from({ length: layers * heads }, (_, index) => `L${Math.floor(index / heads) + 1}.H${index % heads}`)
  const graph = compositionGraph([...names, `L${layers + 1}.H0`], width)
  const middle = MARGIN.top + (graph.height - MARGIN.top - MARGIN.bottom) / 2
  const inner = graph.nodes.slice(0, -1).map((node) => ({ ...node, layer: node.layer - 1, name: `L${node.layer - 1}.H${node.head}` }))
  const end = (name: string, layer: number, x: number): Node => ({ name, layer, head: 0, x, y: middle })
  return { ...graph, nodes: [end(EMBED, -1, MARGIN.left), ...inner, end(LOGITS, layers, width - MARGIN.right)] }
}

/** The edges of a circuit. The strongest is last, so that it is drawn on top. */
export function circuitEdges(result: AnalysisResult, nodes: Node[]): CircuitEdge[] {
  const indices = new Map(nodes.map((node, index) => [node.name, index]))
  const [names, from, to, roles] = ['edge', 'edge_from', 'edge_to', 'role'].map((key) => (result.coords[key]?.values ?? []).map(String)) as [string[], string[], string[], string[]]
  const edges = names.map((name, index) => ({ name, from: indices.get(from[index]!)!, to: indices.get(to[index]!)!, role: roles[index] as Role, strength: result.arrays.removal!.values[index]!, restores: result.arrays.effect!.values[index]!, shift: 0 }))
  for (const edge of edges) {
    const parallel = edges.filter(({ from, to }) => from === edge.from && to === edge.to)
    edge.shift = parallel.indexOf(edge) - (parallel.length - 1) / 2
  }
  return edges.sort((a, b) => Math.abs(a.strength) - Math.abs(b.strength))
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

const SHIFT_STEP = 16

/** SVG path of an edge. An edge with a shift bulges up or down. */
export function edgePath(a: Node, b: Node, shift = 0): string {
  const bend = (b.x - a.x) * 0.5, rise = shift * SHIFT_STEP
  return `M${a.x.toFixed(1)} ${a.y.toFixed(1)}C${(a.x + bend).toFixed(1)} ${(a.y + rise).toFixed(1)} ${(b.x - bend).toFixed(1)} ${(b.y + rise).toFixed(1)} ${b.x.toFixed(1)} ${b.y.toFixed(1)}`
}
