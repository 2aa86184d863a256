/** The state of the page as one link: what stands after # opens the same view again. */

import type { Edit } from './wire'

export interface Switched extends Edit { off?: boolean }

export const SHOWN = ['trails', 'arcs', 'moves', 'coupling', 'massive'] as const
export type Shown = (typeof SHOWN)[number]
export const SIDES = ['before', 'after', 'difference'] as const
export type Side = (typeof SIDES)[number]

export interface Link {
  model: string
  text: string
  /** Which window of a long text, counted from 1. */
  window: number | null
  /** '' · before · untrained · text:… · model:… */
  beside: string
  view: string
  colour: string
  space: string
  axes: string
  edits: Switched[]
  language: string
  step: number
  token: number | null
  second: number | null
  layer: number | null
  head: number | null
  field: string
  /** What the cloud shows beside its points. */
  show: Shown[]
  /** Under an edit: which side of it arrows, arcs and images are of. */
  side: Side
}

export const USUAL: Link = {
  model: '', text: '', window: null, beside: '', view: 'heads', colour: 'cluster', space: 'sphere', axes: 'all', edits: [], language: '',
  step: 0, token: null, second: null, layer: null, head: null, field: '', show: ['trails', 'arcs'], side: 'after',
}

/** 3.1.M.rank.4 is: layer 3, head 1, its M cut to rank 4; a leading ~ is switched off. */
export const editWritten = ({ layer, head, part, operation, value, off }: Switched): string =>
  `${off ? '~' : ''}${layer}.${head}.${part}.${operation}${value === undefined ? '' : `.${String(value).replace('.', '_')}`}`

export function editRead(text: string): Switched | null {
  const found = /^(~?)(\d+)\.(\d+)\.(M|F|both)\.([a-z0-9]+)(?:\.(-?[\d_e-]+))?$/.exec(text)
  if (!found) return null
  const [, off, layer, head, part, operation, value] = found
  return {
    layer: Number(layer), head: Number(head), part: part as Edit['part'], operation: operation!,
    ...(value === undefined ? {} : { value: Number(value.replace('_', '.')) }), ...(off ? { off: true } : {}),
  }
}

const whole = (text: string | null): number | null => (text !== null && /^\d+$/.test(text) ? Number(text) : null)

/** What stands after #: only what is not usual. */
export function written(link: Link): string {
  const told = new URLSearchParams()
  for (const name of ['model', 'text', 'beside', 'view', 'colour', 'space', 'axes', 'language', 'field'] as const)
    if (link[name] !== USUAL[name]) told.set(name, link[name])
  if (link.edits.length) told.set('edits', link.edits.map(editWritten).join(','))
  if (link.show.join() !== USUAL.show.join()) told.set('show', link.show.join())
  if (link.side !== USUAL.side) told.set('side', link.side)
  if (link.step) told.set('step', String(link.step))
  for (const name of ['window', 'token', 'second', 'layer', 'head'] as const) if (link[name] !== null) told.set(name, String(link[name]))
  return told.toString()
}

export function read(hash: string): Link {
  const told = new URLSearchParams(hash.replace(/^#/, ''))
  const word = (name: 'model' | 'text' | 'beside' | 'view' | 'colour' | 'space' | 'axes' | 'language' | 'field') => told.get(name) ?? USUAL[name]
  return {
    model: word('model'), text: word('text'), beside: word('beside'), view: word('view'), colour: word('colour'), space: word('space'), axes: word('axes'),
    language: word('language'), field: word('field'),
    edits: (told.get('edits') ?? '').split(',').map(editRead).filter((one) => one !== null),
    show: SHOWN.filter((one) => (told.get('show') ?? USUAL.show.join()).split(',').includes(one)),
    side: SIDES.find((one) => one === told.get('side')) ?? USUAL.side,
    step: whole(told.get('step')) ?? 0,
    window: whole(told.get('window')), token: whole(told.get('token')), second: whole(told.get('second')), layer: whole(told.get('layer')), head: whole(told.get('head')),
  }
}

/** Changes that the back button should undo one by one; moving the scrubber is none of them. */
export const remembered = (change: Partial<Link>): boolean => ['model', 'text', 'window', 'beside', 'view', 'edits', 'axes', 'space'].some((name) => name in change)
