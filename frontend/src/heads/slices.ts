/** Layer × head maps out of any field that has both axes. */

import type { Answer, Catalogue, Field } from '../wire'

export interface Choice { value: string; analysis: string; field: string; definition: string; null: string; dear: boolean }

/** Every field of the catalogue that says something of each head, or of each token by each head. */
export function choicesOf(catalogue: Catalogue | null): (Choice & { tokens: boolean })[] {
  return (catalogue?.analyses ?? []).flatMap((one) => Object.entries(one.fields)
    .filter(([name, field]) => field.dims.includes('layer') && field.dims.includes('head') && !/_null(_sd)?$/.test(name))
    .map(([name, field]) => ({ value: `${one.name}.${name}`, analysis: one.name, field: name, definition: field.definition, null: field.null ?? '', dear: one.dear, tokens: field.dims.includes('token') })))
}

/** Those that have one number for each head of a text. */
export const choices = (catalogue: Catalogue | null): Choice[] => choicesOf(catalogue).filter((one) => !one.tokens)

/** What the other axes of a field can be: names, one for each map it holds. */
export function slicesOf(answer: Pick<Answer, 'coords'>, field: Field, told: (name: string) => string = (name) => name): string[] {
  let names = ['']
  field.dims.forEach((dim, at) => {
    if (dim === 'layer' || dim === 'head') return
    const values = answer.coords[dim]?.values ?? Array.from({ length: field.shape[at]! }, (_, k) => k)
    names = names.flatMap((name) => values.map((value) => `${name}${name && ', '}${told(dim)} ${told(String(value))}`))
  })
  return names
}

/** Map number `slice` of a field, as layer × head. */
export function sliceAt(field: Field, slice: number): Float32Array {
  const [l, h] = [field.dims.indexOf('layer'), field.dims.indexOf('head')]
  const [layers, heads] = [field.shape[l]!, field.shape[h]!]
  const strides = field.shape.map((_, at) => field.shape.slice(at + 1).reduce((a, b) => a * b, 1))
  let [offset, left] = [0, slice]
  for (let at = field.dims.length - 1; at >= 0; at--) {
    if (at === l || at === h) continue
    offset += (left % field.shape[at]!) * strides[at]!
    left = Math.floor(left / field.shape[at]!)
  }
  const out = new Float32Array(layers * heads)
  for (let layer = 0; layer < layers; layer++) for (let head = 0; head < heads; head++) out[layer * heads + head] = field.values[offset + layer * strides[l]! + head * strides[h]!]!
  return out
}
