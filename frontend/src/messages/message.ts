/** Text for people as a value: an English template with parameters, rendered in the language of the page. */

export type Parameter = string | number | boolean | null | MessageValue | Command
/** A complete command to type, which the page shows with a button that copies it. */
export interface Command { command: string }
export interface MessageValue { template: string; parameters?: Record<string, Parameter> }
/** A text from the server: a plain string or a message. */
export type Text = string | MessageValue

/** English template → template in another language. */
export type Catalogue = Record<string, string>
export const ENGLISH: Catalogue = {}

const PLACEHOLDER = /\{\{|\}\}|\{(\w+)(?:!([rs]))?(?::([^{}]*))?\}/g
const FORMAT = /^([+ ]?)(,?)(?:\.(\d+))?([dsfeg]?)$/

/** A text in the language of a catalogue. A template that the catalogue does not contain stays English. */
export const render = (text: Text, catalogue: Catalogue = ENGLISH): string =>
  renderParts(text, catalogue).map((part) => (typeof part === 'string' ? part : part.command)).join('')

/** A text in the language of a catalogue, split at its commands. No line ends between a number and its percent sign. */
export function renderParts(text: Text, catalogue: Catalogue = ENGLISH): (string | Command)[] {
  const joined: (string | Command)[] = []
  for (const part of filledParts(text, catalogue)) {
    const last = joined.at(-1)
    if (typeof part === 'string' && typeof last === 'string') joined[joined.length - 1] = last + part
    else joined.push(part)
  }
  return joined.map((part) => (typeof part === 'string' ? part.replace(/(\d) %/g, '$1\u00a0%') : part))
}

function filledParts(text: Text, catalogue: Catalogue): (string | Command)[] {
  if (typeof text === 'string') return [translation(text, catalogue)]
  const template = translation(text.template, catalogue)
  const parameters = text.parameters ?? {}
  if (Object.keys(parameters).length === 0) return [template]
  const parts: (string | Command)[] = []
  let end = 0
  for (const { 0: placeholder, 1: name, 2: conversion, 3: format, index } of template.matchAll(PLACEHOLDER)) {
    parts.push(template.slice(end, index))
    if (name === undefined) parts.push(placeholder[0]!)
    else if (!(name in parameters)) parts.push(placeholder)
    else parts.push(...parameterParts(parameters[name]!, conversion, format ?? '', catalogue))
    end = index + placeholder.length
  }
  return [...parts, template.slice(end)].filter((part) => part !== '')
}

/** The English template of a text, by which code recognises it in any language. */
export const templateOf = (text: Text): string => (typeof text === 'string' ? text : text.template)

export const isMessage = (value: unknown): value is MessageValue =>
  typeof value === 'object' && value !== null && typeof (value as MessageValue).template === 'string'

const isCommand = (value: Parameter): value is Command => typeof value === 'object' && value !== null && 'command' in value

/** The name that a title starts with a capital: "Effective rank" is "effective rank". "A", "F" and "QK" are symbols. */
const withoutCapital = (title: string): string => (/^[A-Z][a-z ]/.test(title) ? title[0]!.toLowerCase() + title.slice(1) : title)

function translation(template: string, catalogue: Catalogue): string {
  const key = Object.hasOwn(catalogue, template) ? template : withoutCapital(template)
  return Object.hasOwn(catalogue, key) ? catalogue[key]! : template
}

function parameterParts(value: Parameter, conversion: string | undefined, format: string, catalogue: Catalogue): (string | Command)[] {
  if (typeof value === 'number') return [applyNumberFormat(value, format)]
  if (isCommand(value)) return [value]
  if (isMessage(value)) return filledParts(value, catalogue)
  const text = value === null ? 'None' : value === true ? 'True' : value === false ? 'False' : translation(value, catalogue)
  return [conversion === 'r' && typeof value === 'string' ? `'${text}'` : text]
}

/** A number in a Python format such as `,`, `.2f`, `+.2f` or `d`. An unknown format leaves the number as it is. */
export function applyNumberFormat(value: number, format: string): string {
  const match = FORMAT.exec(format)
  if (!match || !Number.isFinite(value)) return String(value)
  const [, sign, comma, precision, type] = match
  const digits = precision === undefined ? undefined : Number(precision)
  const size = formatSize(Math.abs(value), type!, digits)
  const [integer, ...decimals] = size.split('.')
  const grouped = comma ? [integer!.replace(/\B(?=(\d{3})+$)/g, ','), ...decimals].join('.') : size
  return (value < 0 || Object.is(value, -0) ? '-' : sign) + grouped
}

function formatSize(size: number, type: string, digits: number | undefined): string {
  if (type === 'f') return size.toFixed(digits ?? 6)
  if (type === 'e') return exponential(size, digits ?? 6)
  if (type === 'd') return String(Math.round(size))
  if (type !== 'g' && digits === undefined) return String(size)
  const precision = Math.max(1, digits ?? 6)
  const rounded = Number(size.toPrecision(precision))
  const exponent = rounded === 0 ? 0 : Math.floor(Math.log10(rounded))
  return exponent < -4 || exponent >= precision ? exponential(rounded, precision - 1).replace(/\.?0+(?=e)/, '') : String(rounded)
}

/** Python writes at least two digits of the exponent. */
const exponential = (size: number, digits: number): string => size.toExponential(digits).replace(/e([+-])(\d)$/, 'e$10$2')
