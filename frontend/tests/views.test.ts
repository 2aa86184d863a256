import { expect, it } from 'vitest'

import { SINGLETONS, clusterFlow, flowLayout, roomyLabels } from '../src/views/cluster_flow'
import { circuitEdges, circuitGraph, edgePath, strongestEdges, compositionGraph } from '../src/views/composition_graph'
import type { AnalysisResult } from '../src/api'

const makeResult = (arrays: AnalysisResult['arrays'], coords: Record<string, unknown[]>): AnalysisResult => ({
  name: '', question: '', sentence: '', attrs: {}, fields: {}, pictures: [], texts: {}, left_out: [], arrays,
  coords: Object.fromEntries(Object.entries(coords).map(([dim, values]) => [dim, { dims: [dim], values }])),
})

it('draws edges above the null, the strongest last', () => {
  const q = { values: Float32Array.of(NaN, 0.1, 0.3, NaN, NaN, -0.2, NaN, NaN, NaN), shape: [3, 3], dims: ['head_from', 'head_to'] }
  expect(strongestEdges(makeResult({ q }, {}), 'q', 9).map(({ from, to }) => [from, to])).toEqual([[0, 1], [0, 2]])
  expect(strongestEdges(makeResult({ q }, {}), 'q', 1)).toEqual([{ from: 0, to: 2, strength: Math.fround(0.3) }])
  expect(strongestEdges(makeResult({ q }, {}), 'k', 9)).toEqual([])
})

it('places layers from left to right and heads from top to bottom', () => {
  const { nodes, layers, heads, height } = compositionGraph(['L0.H0', 'L0.H1', 'L1.H0', 'L1.H1'], 500)
  expect([layers, heads]).toEqual([2, 2])
  expect(nodes[2]!.x).toBeGreaterThan(nodes[0]!.x)
  expect(nodes[0]!.x).toBe(nodes[1]!.x)
  expect(nodes[1]!.y).toBeGreaterThan(nodes[0]!.y)
  for (const { x, y } of nodes) expect(x > 0 && x < 500 && y > 0 && y < height).toBe(true)
})

it('places the embedding before the first layer and the logits behind the last', () => {
  const { nodes } = circuitGraph(2, 3, 500)
  expect(nodes.map(({ name }) => name)).toEqual(['embed', 'L0.H0', 'L0.H1', 'L0.H2', 'L1.H0', 'L1.H1', 'L1.H2', 'logits'])
  expect(nodes.map(({ layer }) => layer)).toEqual([-1, 0, 0, 0, 1, 1, 1, 2])
  const columns = [0, 1, 4, 7].map((index) => nodes[index]!.x)
  expect(columns).toEqual([...columns].sort((a, b) => a - b))
  expect(new Set(columns).size).toBe(4)
})

it('draws the edges of a circuit by the loss without them', () => {
  const removal = { values: Float32Array.of(0.5, -0.7, 0.1), shape: [3], dims: ['edge'] }
  const effect = { values: Float32Array.of(0.25, 0, 0, 1, 1, 1), shape: [2, 3], dims: ['direction', 'edge'] }
  const coords = { edge: ['a', 'b', 'c'], edge_from: ['embed', 'L0.H1', 'embed'], edge_to: ['L0.H1', 'logits', 'logits'], role: ['v', 'logits', 'logits'] }
  const edges = circuitEdges(makeResult({ removal, effect }, coords), circuitGraph(1, 2, 300).nodes)
  expect(edges.map(({ name, from, to, role }) => [name, from, to, role])).toEqual([['c', 0, 3, 'logits'], ['a', 0, 2, 'v'], ['b', 2, 3, 'logits']])
  expect(edges[1]!.restores).toBe(0.25)
})

it('separates edges between the same nodes through different roles', () => {
  const removal = { values: Float32Array.of(0.5, 0.4, 0.3), shape: [3], dims: ['edge'] }
  const effect = { values: Float32Array.of(0, 0, 0, 0, 0, 0), shape: [2, 3], dims: ['direction', 'edge'] }
  const coords = { edge: ['a', 'b', 'c'], edge_from: ['embed', 'embed', 'L0.H0'], edge_to: ['L0.H0', 'L0.H0', 'logits'], role: ['q', 'v', 'logits'] }
  const { nodes } = circuitGraph(1, 2, 300)
  const paths = circuitEdges(makeResult({ removal, effect }, coords), nodes).map(({ from, to, shift }) => edgePath(nodes[from]!, nodes[to]!, shift))
  expect(new Set(paths).size).toBe(3)
  expect(paths[0]).toBe(edgePath(nodes[1]!, nodes[3]!))
})

const lineage = { values: Float32Array.of(0, 0, 1, 2, 0, 0, 0, 2), shape: [2, 4], dims: ['point', 'token'] }
const result = makeResult({ lineage }, { point: ['embed', 'L0.resid_post'], token: [1, 2, 3, 5] })

it('every token is in one band per step, and singletons are grouped', () => {
  const flow = clusterFlow(result)!
  expect(flow.clusters.map(({ point, name, tokens }) => [point, name, tokens])).toEqual([[0, 0, [1, 2]], [0, SINGLETONS, [3, 5]], [1, 0, [1, 2, 3]], [1, SINGLETONS, [5]]])
  expect(flow.bands.map(({ source, target, value }) => [source, target, value])).toEqual([[0, 2, 2], [1, 2, 1], [1, 3, 1]])
  expect(flow.bands.reduce((sum, { value }) => sum + value, 0)).toBe(4)
})

it('clusters of a step are aligned, with heights proportional to their tokens', () => {
  const { clusters } = flowLayout(clusterFlow(result)!, 300, 200)
  expect(clusters[0]!.x).toBe(clusters[1]!.x)
  expect(clusters[2]!.x).toBeGreaterThan(clusters[0]!.x)
  expect(clusters[2]!.height / clusters[3]!.height).toBeCloseTo(3)
  expect(clusters[1]!.y).toBeGreaterThan(clusters[0]!.y)
})

it('leaves out labels of columns that would touch, but never that of the current one', () => {
  const labels = [0, 40, 80, 120].map((x) => ({ x, half: 25 }))
  expect(roomyLabels(labels, 1)).toEqual([1, 3])
  expect(roomyLabels(labels, 0)).toEqual([0, 2])
  expect(roomyLabels(labels.map(({ x }) => ({ x, half: 10 })), 3)).toEqual([0, 1, 2, 3])
  expect(roomyLabels(labels, -1)).toEqual([0, 2])
})
