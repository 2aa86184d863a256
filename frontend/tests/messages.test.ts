import { expect, it } from 'vitest'

import { LANGUAGES, said } from '../src/messages'
import { en } from '../src/messages/en'

const gaps = (text: string): string[] => [...text.matchAll(/\{(\w+)\}/g)].map((found) => found[1]!).sort()

const sources = import.meta.glob<string>(['../src/**/*.ts', '../src/**/*.svelte', '!../src/messages/*'], { query: '?raw', import: 'default', eager: true })

it.each(Object.entries(LANGUAGES))('%s says everything, with the same gaps', (_, { page: messages }) => {
  expect(Object.keys(messages).sort()).toEqual(Object.keys(en).sort())
  for (const [key, text] of Object.entries(messages)) {
    expect(text.trim(), key).not.toBe('')
    expect(gaps(text), key).toEqual(gaps(en[key as keyof typeof en]))
  }
})

it('every message is said somewhere', () => {
  const code = Object.values(sources).join('\n')
  const built = /^(op|part|tour|colour|is|image|torn|glued|composes)_|^(weights|reversed)$|^(particles|dimension|sharpness|steps|seed)_about$/
  const unsaid = Object.keys(en).filter((key) => !built.test(key) && !new RegExp(`['"\`]${key}['"\`]`).test(code))
  expect(unsaid).toEqual([])
})

it('gaps are filled, and what is filled in is not read again', () => {
  expect(said(LANGUAGES.en!.page, 'attribution_of', { query: '{key}', key: 'b', score: 1 })).toBe('Score of {key} → b: 1')
})
