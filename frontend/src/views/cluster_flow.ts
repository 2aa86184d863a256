/** How clusters merge and split from layer to layer, as a Sankey diagram. The width of a band is its number of tokens. */

import { sankey, sankeyLinkHorizontal, type SankeyGraph } from 'd3-sankey'

import type { AnalysisResult } from '../api'

/** A cluster at a step. Singletons are grouped under the name SINGLETONS. */
export interface Cluster { point: number; name: number; tokens: number[] }
export interface Band { source: number; target: number; value: number; tokens: number[] }
export interface Flow { points: string[]; clusters: Cluster[]; bands: Band[] }
export const SINGLETONS = -1

/** Clusters and bands from the lineage of clusters (point × token). */
export function clusterFlow(result: AnalysisResult): Flow | null {
  const field = result.arrays.lineage
  const points = (result.coords.point?.values ?? []).map(String)
  const positions = (result.coords.token?.values ?? []).map(Number)
  if (!field || points.length < 2 || !positions.length) return null
  const clusters: Cluster[] = []
  const clusterIndex: number[][] = []
  points.forEach((_, point) => {
    const names = positions.map((_, k) => field.values[point * positions.length + k]!)
    const sizes = new Map<number, number>()
    for (const name of names) sizes.set(name, (sizes.get(name) ?? 0) + 1)
    const indexOfName = new Map<number, number>()
    clusterIndex.push(names.map((label, k) => {
      const name = sizes.get(label)! > 1 ? label : SINGLETONS
      if (!indexOfName.has(name)) indexOfName.set(name, clusters.push({ point, name, tokens: [] }) - 1)
      clusters[indexOfName.get(name)!]!.tokens.push(positions[k]!)
      return indexOfName.get(name)!
    }))
  })
  const bands = new Map<string, Band>()
  for (let point = 0; point + 1 < points.length; point++)
    positions.forEach((token, k) => {
      const [source, target] = [clusterIndex[point]![k]!, clusterIndex[point + 1]![k]!]
      const key = `${source} ${target}`
      if (!bands.has(key)) bands.set(key, { source, target, value: 0, tokens: [] })
      const band = bands.get(key)!
      band.value++
      band.tokens.push(token)
    })
  return { points, clusters, bands: [...bands.values()] }
}

/** Labels below the columns, by their centres and half widths, that do not touch each other: the current one, and the first ones that fit. */
export function roomyLabels(labels: { x: number; half: number }[], current: number): number[] {
  const shown: number[] = []
  for (const index of [current, ...labels.keys()])
    if (labels[index] && shown.every((other) => Math.abs(labels[other]!.x - labels[index]!.x) >= labels[other]!.half + labels[index]!.half)) shown.push(index)
  return shown.sort((a, b) => a - b)
}

export interface FlowLayout { clusters: (Cluster & { x: number; y: number; width: number; height: number })[]; bands: (Omit<Band, 'source' | 'target'> & { path: string; width: number; name: number })[] }

/** Positions in pixels: steps from left to right, clusters ordered by name, singletons at the bottom. */
export function flowLayout(flow: Flow, width: number, height: number): FlowLayout {
  type N = { index: number }
  const order = (a: { index?: number | undefined }, b: { index?: number | undefined }): number => {
    const [first, second] = [flow.clusters[a.index!]!, flow.clusters[b.index!]!]
    return Number(first.name === SINGLETONS) - Number(second.name === SINGLETONS) || first.name - second.name
  }
  const maxClusters = Math.max(...flow.points.map((_, point) => flow.clusters.filter((cluster) => cluster.point === point).length))
  const layout = sankey<N, object>().nodeWidth(10).nodePadding(Math.min(8, (height * 0.4) / Math.max(1, maxClusters - 1)))
    .nodeAlign((node) => flow.clusters[node.index!]!.point).nodeSort(order).extent([[2, 2], [width - 2, height - 2]])
  const graph: SankeyGraph<N, object> = layout({ nodes: flow.clusters.map((_, index) => ({ index })), links: flow.bands.map(({ source, target, value }) => ({ source, target, value })) })
  const path = sankeyLinkHorizontal<N, object>()
  return {
    clusters: graph.nodes.map((node, index) => ({ ...flow.clusters[index]!, x: node.x0!, y: node.y0!, width: node.x1! - node.x0!, height: Math.max(1, node.y1! - node.y0!) })),
    bands: graph.links.map((link, index) => ({ value: flow.bands[index]!.value, tokens: flow.bands[index]!.tokens, path: path(link) ?? '', width: Math.max(1, link.width ?? 1), name: flow.clusters[flow.bands[index]!.target]!.name })),
  }
}
