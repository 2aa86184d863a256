/** How clusters pass into each other from layer to layer: a band is as wide as it has tokens. */

import { sankey, sankeyLinkHorizontal, type SankeyGraph } from 'd3-sankey'

import type { Answer } from '../wire'

/** A cluster at a point; tokens that are alone there stand together, under no name. */
export interface Cluster { point: number; name: number; tokens: number[] }
export interface Band { source: number; target: number; value: number; tokens: number[] }
export interface Flow { points: string[]; clusters: Cluster[]; bands: Band[] }
export const ALONE = -1

/** Clusters and bands out of lasting names (point × token). */
export function flowOf(answer: Answer): Flow | null {
  const field = answer.arrays.lineage
  const points = (answer.coords.point?.values ?? []).map(String)
  const places = (answer.coords.token?.values ?? []).map(Number)
  if (!field || points.length < 2 || !places.length) return null
  const clusters: Cluster[] = []
  const at: number[][] = []
  points.forEach((_, point) => {
    const names = places.map((_, k) => field.values[point * places.length + k]!)
    const sizes = new Map<number, number>()
    for (const name of names) sizes.set(name, (sizes.get(name) ?? 0) + 1)
    const known = new Map<number, number>()
    at.push(names.map((own, k) => {
      const name = sizes.get(own)! > 1 ? own : ALONE
      if (!known.has(name)) known.set(name, clusters.push({ point, name, tokens: [] }) - 1)
      clusters[known.get(name)!]!.tokens.push(places[k]!)
      return known.get(name)!
    }))
  })
  const bands = new Map<string, Band>()
  for (let point = 0; point + 1 < points.length; point++)
    places.forEach((token, k) => {
      const [source, target] = [at[point]![k]!, at[point + 1]![k]!]
      const key = `${source} ${target}`
      if (!bands.has(key)) bands.set(key, { source, target, value: 0, tokens: [] })
      const band = bands.get(key)!
      band.value++
      band.tokens.push(token)
    })
  return { points, clusters, bands: [...bands.values()] }
}

export interface Laid { clusters: (Cluster & { x: number; y: number; width: number; height: number })[]; bands: (Omit<Band, 'source' | 'target'> & { path: string; width: number; name: number })[] }

/** Where they lie on a sheet: points from left to right, a cluster where its name last was, those that are alone at the bottom. */
export function laid(flow: Flow, width: number, height: number): Laid {
  type N = { index: number }
  const order = (a: { index?: number | undefined }, b: { index?: number | undefined }): number => {
    const [one, other] = [flow.clusters[a.index!]!, flow.clusters[b.index!]!]
    return Number(one.name === ALONE) - Number(other.name === ALONE) || one.name - other.name
  }
  const most = Math.max(...flow.points.map((_, point) => flow.clusters.filter((one) => one.point === point).length))
  const layout = sankey<N, object>().nodeWidth(10).nodePadding(Math.min(8, (height * 0.4) / Math.max(1, most - 1)))
    .nodeAlign((node) => flow.clusters[node.index!]!.point).nodeSort(order).extent([[2, 2], [width - 2, height - 2]])
  const graph: SankeyGraph<N, object> = layout({ nodes: flow.clusters.map((_, index) => ({ index })), links: flow.bands.map(({ source, target, value }) => ({ source, target, value })) })
  const path = sankeyLinkHorizontal<N, object>()
  return {
    clusters: graph.nodes.map((node, at) => ({ ...flow.clusters[at]!, x: node.x0!, y: node.y0!, width: node.x1! - node.x0!, height: Math.max(1, node.y1! - node.y0!) })),
    bands: graph.links.map((link, at) => ({ value: flow.bands[at]!.value, tokens: flow.bands[at]!.tokens, path: path(link) ?? '', width: Math.max(1, link.width ?? 1), name: flow.clusters[flow.bands[at]!.target]!.name })),
  }
}
