import { expect, it } from 'vitest'

import { mergeRows, type StoryRow } from '../src/story_rows'

const row = (title: string, sentence: string): StoryRow => ({ name: title, title, needs: [], sentence })

it('gives lines that say the same one row', () => {
  const lines = [row('Next token', 'it predicts none'), row('Movement', 'L5'), row('Written by', 'it predicts none'), row('Groups', ''), row('Seen through', '')]
  expect(mergeRows(lines).map(({ title, sentence }) => [title, sentence])).toEqual([['Next token · Written by', 'it predicts none'], ['Movement', 'L5'], ['Groups', ''], ['Seen through', '']])
  expect(lines[0]!.title).toBe('Next token')
})
