import { expect, it } from 'vitest'

import { LANGUAGES, pageText } from '../src/messages'
import { en } from '../src/messages/en'
import { ENGLISH } from '../src/messages/message'

const parameters = (template: string): string[] => [...template.matchAll(/\{(\w+)/g)].map((match) => match[1]!).sort()

const sources = import.meta.glob<string>(['../src/**/*.ts', '../src/**/*.svelte', '!../src/messages/*'], { query: '?raw', import: 'default', eager: true })
const code = Object.values(sources).join('\n')

it.each(Object.keys(LANGUAGES).filter((language) => language !== 'en'))('%s translates every text of the page with the same parameters', async (language) => {
  const catalogue = await LANGUAGES[language]!.load()
  for (const [key, template] of Object.entries(en)) {
    expect(catalogue[template], key).toBeTruthy()
    expect(parameters(catalogue[template]!), key).toEqual(parameters(template))
  }
})

it('uses every text of the page', () => {
  const composed = /^(op|group|part|tour|colour|is|image|separated|merged|composes)_|^(weights|reversed)$|^gallery_(open|refused|loading|unopened)$|^(particles|dimension|sharpness|steps|seed)_help$/
  expect(Object.keys(en).filter((key) => !composed.test(key) && !new RegExp(`['"\`]${key}['"\`]`).test(code))).toEqual([])
})

it('passes every text the parameters of its template', () => {
  for (const [, key, list] of code.matchAll(/message\('(\w+)'(?:, \{((?:[^{}]|\{[^{}]*\})*)\})?\)/g)) {
    const names = [...(list ?? '').matchAll(/(?:^|,) ?(\w+)(?=:|,|$| $)/g)].map((match) => match[1]!)
    for (const name of parameters(en[key as keyof typeof en])) expect(names, key).toContain(name)
  }
})

it('fills in parameters once', () => {
  expect(pageText('attribution_of', { query: '{key}', key: 'b', score: 1 }, ENGLISH)).toBe('Score of {key} → b: 1')
})
