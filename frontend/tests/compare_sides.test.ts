import { expect, it } from 'vitest'

import type { GalleryEntry, TraceInfo } from '../src/api'
import { en, type MessageKey } from '../src/messages/en'
import { comparable, quoted, shortPath, sideNames } from '../src/views/compare_sides'

const studio = (compareWith: string) => ({ compareWith, selectedModel: 'default', message: (key: MessageKey) => en[key], render: String, modelName: (id: string) => `name of ${id}` })
const [comparison, shown] = [{ text: 'A king', model: 'default' }, { text: 'A queen', model: 'default' }] as [TraceInfo, TraceInfo] // equal weights, one trace

it('names both sides by what they differ in', () => {
  expect(sideNames(studio('before'), comparison, shown)).toEqual(['before', 'after'])
  expect(sideNames(studio('text:A king'), comparison, shown)).toEqual(['“A king”', '“A queen”'])
  expect(sideNames(studio('untrained'), comparison, shown)).toEqual(['untrained control', 'name of default'])
  expect(sideNames(studio('model:gpt2'), comparison, shown)).toEqual(['name of gpt2', 'name of default'])
  expect(sideNames(studio('model:/runs/small/last'), comparison, shown)[0]).toBe('small/last')
  expect(sideNames({ ...studio('model:/runs/small/last'), modelName: () => 'Transformer' }, comparison, shown)).toEqual(['small/last', 'default'])
})

it('shortens a text between two words', () => {
  expect(quoted('word '.repeat(30))).toBe(`“${'word '.repeat(12)}…”`)
})

it('offers models and checkpoints except the selected and the refused ones', () => {
  const entry = (source: string, status: GalleryEntry['status'] = 'unopened') => ({ source, id: source, name: source, status }) as GalleryEntry
  const entries = [entry('default', 'open'), entry('/runs/small/last'), entry('/runs/large/last/'), entry('t5', 'refused'), entry('gpt2')]
  expect(comparable(entries, 'default', String)).toEqual([['model:/runs/small/last', 'small/last'], ['model:/runs/large/last/', 'large/last'], ['model:gpt2', 'gpt2']])
  expect(shortPath('gpt2')).toBe('gpt2')
})
