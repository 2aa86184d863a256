/** The state of the page as a link: the text after # opens the same view again. */

import type { Edit, TraceInfo } from './api'
import { LANGUAGES } from './messages'
import { en, type MessageKey } from './messages/en'
import type { MessageValue } from './messages/message'

/** An edit that can be switched off without being removed. */
export interface ToggledEdit extends Edit { off?: boolean }

export const CLOUD_LAYERS = ['trails', 'arcs', 'moves', 'coupling', 'massive'] as const
export type CloudLayer = (typeof CLOUD_LAYERS)[number]
export const SIDES = ['before', 'after', 'difference'] as const
export type Side = (typeof SIDES)[number]
/** The clouds of an encoder-decoder. */
export const CLOUDS = ['source', 'target'] as const
export type PairSide = (typeof CLOUDS)[number]

export interface Link {
  model: string
  text: string
  /** The target of an encoder-decoder, whose source is the text; '' without one. */
  target: string
  /** Which of the two clouds is shown, if there is a target. */
  cloud: PairSide
  /** Window of a long text, counted from 1. */
  window: number | null
  /** '' · before · untrained · text:… · model:… */
  compareWith: string
  view: string
  colour: string
  space: string
  axes: string
  edits: ToggledEdit[]
  language: string
  step: number
  token: number | null
  second: number | null
  layer: number | null
  head: number | null
  /** Step of the tour, counted from 1. */
  tour: number | null
  field: string
  /** The training run that is shown. */
  run: string
  /** What the cloud shows in addition to its points. */
  show: CloudLayer[]
  /** With edits: whether arrows, arcs and images show the state before, after, or the difference. */
  side: Side
}

export const DEFAULT_LINK: Link = {
  model: '', text: '', target: '', cloud: 'target', window: null, compareWith: '', view: 'heads', colour: 'cluster', space: 'sphere', axes: 'prediction', edits: [], language: '',
  step: 0, token: null, second: null, layer: null, head: null, tour: null, field: '', run: '', show: ['arcs'], side: 'after',
}

const COMPARISONS = ['before', 'untrained', 'text:…', 'model:…'] as const
const isComparison = (value: string): boolean => ['', 'before', 'untrained'].includes(value) || /^(text|model):/.test(value)

const TEXT_PARAMETERS = ['model', 'text', 'target', 'compareWith', 'view', 'colour', 'space', 'axes', 'language', 'field', 'run'] as const
const INDEX_PARAMETERS = ['window', 'token', 'second', 'layer', 'head', 'tour'] as const
/** Names of properties in links of version 0.1. */
const OLD_NAMES: Record<string, string> = { compareWith: 'beside' }

/** 3.1.M.rank.4 means: layer 3, head 1, its M truncated to rank 4. A leading ~ means switched off. */
export const formatEdit = ({ layer, head, part, operation, value, off }: ToggledEdit): string =>
  `${off ? '~' : ''}${layer}.${head}.${part}.${operation}${value === undefined ? '' : `.${String(value).replace('.', '_')}`}`

export function parseEdit(text: string): ToggledEdit | null {
  const match = /^(~?)(\d+)\.(\d+)\.(M|F|both)\.([a-z0-9]+)(?:\.(-?[\d_e-]+))?$/.exec(text)
  if (!match) return null
  const [, off, layer, head, part, operation, value] = match
  return {
    layer: Number(layer), head: Number(head), part: part as Edit['part'], operation: operation!,
    ...(value === undefined ? {} : { value: Number(value.replace('_', '.')) }), ...(off ? { off: true } : {}),
  }
}

const parseIndex = (text: string | null): number | null => (text !== null && /^\d+$/.test(text) ? Number(text) : null)

/** The hash of a link: only values that differ from the default. */
export function formatLink(link: Link): string {
  const parameters = new URLSearchParams()
  for (const name of TEXT_PARAMETERS) if (link[name] !== DEFAULT_LINK[name]) parameters.set(name, link[name])
  if (link.edits.length) parameters.set('edits', link.edits.map(formatEdit).join(','))
  if (link.show.join() !== DEFAULT_LINK.show.join()) parameters.set('show', link.show.join())
  if (link.cloud !== DEFAULT_LINK.cloud) parameters.set('cloud', link.cloud)
  if (link.side !== DEFAULT_LINK.side) parameters.set('side', link.side)
  if (link.step) parameters.set('step', String(link.step))
  for (const name of INDEX_PARAMETERS) if (link[name] !== null) parameters.set(name, String(link[name]))
  return parameters.toString()
}

export function parseLink(hash: string): Link {
  const parameters = new URLSearchParams(hash.replace(/^#/, ''))
  const texts = Object.fromEntries(TEXT_PARAMETERS.map((name) => [name, parameters.get(name) ?? parameters.get(OLD_NAMES[name] ?? '') ?? DEFAULT_LINK[name]])) as Pick<Link, (typeof TEXT_PARAMETERS)[number]>
  const indices = Object.fromEntries(INDEX_PARAMETERS.map((name) => [name, parseIndex(parameters.get(name))])) as Pick<Link, (typeof INDEX_PARAMETERS)[number]>
  return {
    ...texts, ...indices,
    compareWith: isComparison(texts.compareWith) ? texts.compareWith : DEFAULT_LINK.compareWith,
    edits: (parameters.get('edits') ?? '').split(',').map(parseEdit).filter((edit) => edit !== null),
    show: CLOUD_LAYERS.filter((layer) => (parameters.get('show') ?? DEFAULT_LINK.show.join()).split(',').includes(layer)),
    cloud: CLOUDS.find((cloud) => cloud === parameters.get('cloud')) ?? DEFAULT_LINK.cloud,
    side: SIDES.find((side) => side === parameters.get('side')) ?? DEFAULT_LINK.side,
    step: parseIndex(parameters.get('step')) ?? 0,
  }
}

const INDICES_OF_TRACE = ['layer', 'head', 'token', 'second', 'step'] as const
export const VIEWS = ['corpus', 'heads', 'readout', 'transport', 'clusters', 'energy', 'composition', 'card', 'atlas', 'learning', 'compare', 'generation', 'dynamics'] as const
const EXPECTED_NAMES: Record<string, readonly string[]> = { side: SIDES, cloud: CLOUDS, space: ['sphere', 'raw'], language: Object.keys(LANGUAGES) }

const makeMessage = (key: MessageKey, parameters: MessageValue['parameters']): MessageValue => ({ template: en[key], parameters })

/** The first value of a link that cannot be read, as a message. */
export function linkFault(hash: string): MessageValue | null {
  const parameters = new URLSearchParams(hash.replace(/^#/, ''))
  const fault = (key: MessageKey, name: string, value: string, expected = '') => makeMessage(key, { setting: `${name}=${value.slice(0, 40)}`, expected })
  for (const name of [...INDEX_PARAMETERS, 'step']) {
    const value = parameters.get(name)
    if (value !== null && parseIndex(value) === null) return fault('link_number', name, value)
  }
  for (const [name, expected] of Object.entries(EXPECTED_NAMES)) {
    const value = parameters.get(name)
    if (value !== null && !expected.includes(value)) return fault('link_name', name, value, expected.join(', '))
  }
  const view = parameters.get('view')
  if (view !== null && !view.startsWith('all:') && !VIEWS.some((name) => name === view)) return fault('link_name', 'view', view, VIEWS.join(', '))
  const layer = (parameters.get('show') ?? '').split(',').find((name) => name && !CLOUD_LAYERS.some((known) => known === name))
  if (layer) return fault('link_name', 'show', layer, CLOUD_LAYERS.join(', '))
  const compareWith = parameters.get('compareWith') ?? ''
  if (!isComparison(compareWith)) return fault('link_name', 'compareWith', compareWith, COMPARISONS.join(', '))
  const edit = (parameters.get('edits') ?? '').split(',').find((text) => text && !parseEdit(text))
  return edit === undefined ? null : makeMessage('link_edit', { value: edit.slice(0, 40) })
}

/** Indices of a link that a trace does not have: how to correct the link, and a message about the first of them. */
export function outOfRange(link: Link, info: TraceInfo): { change: Partial<Link>; message: MessageValue } | null {
  const counts = { layer: info.layers, head: info.heads, token: info.tokens.length, second: info.tokens.length, step: info.steps.length }
  const names = INDICES_OF_TRACE.filter((name) => (link[name] ?? 0) >= counts[name])
  const first = names[0]
  if (first === undefined) return null
  const change: Partial<Link> = Object.fromEntries(names.map((name) => [name, name === 'step' ? counts.step - 1 : null]))
  return { change, message: makeMessage('link_range', { setting: `${first}=${link[first]}`, last: counts[first] - 1 }) }
}

/** Whether the back button undoes a change. Moving the scrubber is not undone. */
export const isUndoable = (change: Partial<Link>): boolean => ['model', 'text', 'target', 'cloud', 'window', 'compareWith', 'view', 'run', 'edits', 'axes', 'space', 'tour'].some((name) => name in change)
