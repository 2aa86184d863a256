import { render } from 'svelte/server'
import { beforeAll, expect, it, vi } from 'vitest'

import type { AnalysisCatalogue, AnalysisResult, Client, Picture, TraceInfo } from '../src/api'
import App from '../src/App.svelte'
import { makeLine, makePanel } from '../src/picture/panel_builders'
import Widget from '../src/notebook/Widget.svelte'
import { OpenTrace } from '../src/open_trace.svelte'
import { Studio } from '../src/studio.svelte'
import Analysis from '../src/views/Analysis.svelte'

beforeAll(() => { vi.stubGlobal('navigator', { language: 'en' }) })

const client = { isLive: true, analysis: async () => ({}) as AnalysisResult } as unknown as Client
const info = {
  id: 'a', model: 'gpt2', text: 'The king', tokens: ['The', ' king'].map((text) => ({ text, shown: text, massive: false })), steps: ['embed', 'L0.resid_mid', 'L0.resid_post'], layers: 1, heads: 2, width: 4,
  edits: [], next: { shown: '·took', probability: 0.5, token: ' took', id: 1 }, top: [{ shown: '·took', probability: 0.5, id: 1 }], provenance: {},
} as TraceInfo
const catalogue = {
  analyses: [{ name: 'head_types', question: 'What does each head do?', needs: 'trace', expensive: false, room: 'covers', fields: {}, settings: {} }],
  story: [{ name: 'next_token', title: 'Next token', needs: ['readout'] }, { name: 'groups', title: { template: 'Groups of {things}', parameters: { things: 'tokens' } }, needs: ['clusters'] }], operations: [],
} as AnalysisCatalogue
const line = { name: 'next_token', title: 'Next token', sentence: { template: '{token}, one of {total:,} tokens', parameters: { token: '·took', total: 1200 } }, deeper: '', needs: ['readout'] }

async function makeStudio(hash: string): Promise<Studio> {
  const studio = new Studio(client, null, { read: () => hash, write: () => undefined })
  await studio.loadLanguage()
  studio.trace = new OpenTrace(client, 'a', '')
  studio.trace.info = info
  studio.trace.story = { next_token: line }
  studio.trace.findings = { findings: [{ text: 'a finding', analysis: 'head_types', q: 0.01 }], held: '' }
  studio.analysisCatalogue = catalogue
  return studio
}

it.each(['heads', 'readout', 'compare', 'dynamics', 'all:head_types', 'composition', 'clusters', 'card', 'atlas', 'learning', 'generation'])('renders the page with the view %s', async (view) => {
  const { body } = render(App, { props: { studio: await makeStudio(`#view=${view}&layer=0&head=1&token=1&edits=0.1.M.rank.4`) } })
  expect(body).toContain('Groups of tokens')
  expect(body).toContain('·took, one of 1,200 tokens')
  expect(body.match(/class="sentence small waiting/g)).toHaveLength(1) // the second line has not arrived
  expect(body).not.toMatch(/undefined|\[object|\{\w+\}/)
})

it('renders the page in Chinese', async () => {
  const studio = await makeStudio('#language=zh&layer=0&head=1')
  const { body } = render(App, { props: { studio } })
  expect(studio.htmlLang).toBe('zh-Hans')
  expect(body).toContain('这段文本中发生了什么')
  expect(body).toContain('>下一个词元<')
  expect(body).not.toMatch(/undefined|\[object|\{\w+\}/)
})

it('renders a picture in a notebook, and its messages', async () => {
  const picture: Picture = { title: { template: 'Speed of {n} tokens', parameters: { n: 2 } }, caption: 'A caption', panels: [makePanel('Panel title', [makeLine('speed', [1, 2]), makeLine('null', [1, 1])])] }
  const { body } = render(Widget, { props: { studio: await makeStudio(''), picture } })
  for (const text of ['Speed of 2 tokens', 'A caption', 'Panel title', 'speed']) expect(body).toContain(text)
})

it('renders an analysis', async () => {
  const { body } = render(Analysis, { props: { studio: await makeStudio(''), name: 'head_types' } })
  expect(body).toContain('What does each head do?')
})
