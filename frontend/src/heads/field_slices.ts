/** Layer × head maps of any field that has both dimensions. */

import type { AnalysisCatalogue, AnalysisResult, Field } from '../api'
import type { Text } from '../messages/message'

export interface FieldChoice { value: string; analysis: string; field: string; definition: Text; null: string; expensive: boolean }

/** All fields with the dimensions layer and head; `tokens` if they also have one value per token. */
export function headFields(catalogue: AnalysisCatalogue | null): (FieldChoice & { tokens: boolean })[] {
  return (catalogue?.analyses ?? []).flatMap((analysis) => Object.entries(analysis.fields)
    .filter(([name, field]) => field.dims.includes('layer') && field.dims.includes('head') && !/_null(_sd)?$/.test(name))
    .map(([name, field]) => ({ value: `${analysis.name}.${name}`, analysis: analysis.name, field: name, definition: field.definition, null: field.null ?? '', expensive: analysis.expensive, tokens: field.dims.includes('token') })))
}

/** Fields with one value per head. */
export const perHeadFields = (catalogue: AnalysisCatalogue | null): FieldChoice[] => headFields(catalogue).filter((choice) => !choice.tokens)

/** A name for every layer × head map that a field contains. */
export function sliceNames(result: Pick<AnalysisResult, 'coords'>, field: Field, displayName: (name: string) => string = (name) => name): string[] {
  let names = ['']
  field.dims.forEach((dim, axis) => {
    if (dim === 'layer' || dim === 'head') return
    const values = result.coords[dim]?.values ?? Array.from({ length: field.shape[axis]! }, (_, k) => k)
    names = names.flatMap((name) => values.map((value) => `${name}${name && ', '}${displayName(dim)} ${displayName(String(value))}`))
  })
  return names
}

/** Map number `slice` of a field (layer × head). */
export function sliceValues(field: Field, slice: number): Float32Array {
  const [l, h] = [field.dims.indexOf('layer'), field.dims.indexOf('head')]
  const [layers, heads] = [field.shape[l]!, field.shape[h]!]
  const strides = field.shape.map((_, axis) => field.shape.slice(axis + 1).reduce((a, b) => a * b, 1))
  let [offset, remainder] = [0, slice]
  for (let axis = field.dims.length - 1; axis >= 0; axis--) {
    if (axis === l || axis === h) continue
    offset += (remainder % field.shape[axis]!) * strides[axis]!
    remainder = Math.floor(remainder / field.shape[axis]!)
  }
  const out = new Float32Array(layers * heads)
  for (let layer = 0; layer < layers; layer++) for (let head = 0; head < heads; head++) out[layer * heads + head] = field.values[offset + layer * strides[l]! + head * strides[h]!]!
  return out
}
