import { render } from 'svelte/server'
import { beforeAll, expect, it, vi } from 'vitest'

import type { Client } from '../src/api'
import Blocks from '../src/blocks/Blocks.svelte'
import { normaliseBlock, readReport, type Block, type RowsBlock } from '../src/blocks/blocks'
import { StripFrame } from '../src/blocks/strip_frame'
import { makeAxis, makeLine, makePanel } from '../src/picture/panel_builders'
import { renderPanel } from '../src/picture/render_panel'
import { Studio } from '../src/studio.svelte'

beforeAll(() => { vi.stubGlobal('navigator', { language: 'en' }) })

const strip = makePanel('a claim: yes', [{ ...makeLine('yes', [0, 0], 'first', 'solid', [1, 3]), mark: 'lines' as 'line' }], { x: makeAxis({ low: -8, high: 8, bare: true }), y: makeAxis({ low: -0.5, high: 0.5, bare: true }) })
const cell = (text: string) => ({ text, definition: '', small_text: '' })
const rows: RowsBlock = { block: 'rows', heading: { template: 'The card of {model}', parameters: { model: 'gpt2' } }, caption: '14 claims', scale: strip, legend: [['random models', ['null', 'dots']]], rows: [{ title: 'A claim', answer: 'yes', number: '.15 (.13 to .17)', strip, details: [{ facts: [['Null', 'rotated heads']], panel: strip }] }] }
const blocks: Block[] = [rows, { block: 'table', heading: 'All intervals', header: [cell('claim')], rows: [[{ ...cell('.5'), small_text: '.1' }]], text_columns: [], small_caption: '', note: 'a note' }, { block: 'lines', heading: 'How to read', lines: ['first line'] }, { block: 'facts', heading: 'Entrants', facts: [['untied', 'the baseline']] }, { block: 'drawing', picture: { title: 'A picture', caption: 'of curves', panels: [strip] } }]
const client = { isLive: true, report: async () => ({ stored: true, blocks }) } as unknown as Client

it('gives the marks of strips and pictures the tags of the page', async () => {
  const report = await readReport<{ stored: boolean }>(client, 'api/cards/default')
  expect(report.stored).toBe(true)
  const [card, , , , drawing] = report.blocks as [RowsBlock, Block, Block, Block, Extract<Block, { block: 'drawing' }>]
  for (const panel of [card.scale, card.rows[0]!.strip, card.rows[0]!.details[0]!.panel, drawing.picture.panels[0]!]) expect(panel.marks[0]!.mark).toBe('line')
})

it('places the marks of a strip by its fixed axis', () => {
  const panel = (normaliseBlock(rows) as RowsBlock).rows[0]!.strip
  const frame = new StripFrame(renderPanel(panel, { render: String, renderLabel: String }))
  expect([frame.x(-8), frame.x(0), frame.x(8)]).toEqual([0, 180, 360])
  expect(frame.y(0)).toBe(13)
})

it('renders every kind of block, the numbers folded', () => {
  const studio = new Studio(client, null, { read: () => '', write: () => undefined })
  const { body } = render(Blocks, { props: { studio, blocks: blocks.map(normaliseBlock) } })
  for (const text of ['The card of gpt2', '14 claims', 'A claim', '.15 (.13 to .17)', 'Numbers: All intervals', 'a note', 'first line', 'the baseline', 'A picture', 'of curves']) expect(body).toContain(text)
  expect(body).not.toContain('rotated heads') // a row that is not open
  expect(body.match(/<details/g)).toHaveLength(4)
  expect(body).not.toMatch(/undefined|\[object/)
})
