/** Blocks of a report, as the server sends them: rows that open, tables, sentences, names with values, and pictures. */

import { normaliseMarks, type Client, type Panel, type Picture } from '../api'
import type { Text } from '../messages/message'

export interface Cell { text: Text; definition: Text; small_text: Text }
export interface TableBlock { block: 'table'; heading: Text; header: Cell[]; rows: Cell[][]; text_columns: number[]; small_caption: Text; note: Text }
export interface LinesBlock { block: 'lines'; heading: Text; lines: Text[] }
export interface FactsBlock { block: 'facts'; heading: Text; facts: [Text, Text][] }
export interface DrawingBlock { block: 'drawing'; picture: Picture }
/** What an opened row shows. */
export interface RowDetail { facts: [Text, Text][]; panel: Panel }
export interface OpeningRow { title: Text; answer: Text; number: Text; strip: Panel; details: RowDetail[] }
/** `legend` has a name, and a colour and a style. `scale` is above all strips. */
export interface RowsBlock { block: 'rows'; heading: Text; caption: Text; scale: Panel; legend: [Text, [string, string]][]; rows: OpeningRow[] }
export type Block = TableBlock | LinesBlock | FactsBlock | DrawingBlock | RowsBlock

const normalisePanel = (panel: Panel): Panel => normaliseMarks({ title: '', caption: '', panels: [panel] }).panels[0]!

/** A block with the tags of marks that the page uses. */
export function normaliseBlock(block: Block): Block {
  if (block.block === 'drawing') return { ...block, picture: normaliseMarks(block.picture) }
  if (block.block !== 'rows') return block
  const rows = block.rows.map((row) => ({ ...row, strip: normalisePanel(row.strip), details: row.details.map((detail) => ({ ...detail, panel: normalisePanel(detail.panel) })) }))
  return { ...block, scale: normalisePanel(block.scale), rows }
}

/** The blocks of a report of the server, with what else it sends about it. */
export async function readReport<T extends object>(client: Client, path: string): Promise<T & { blocks: Block[] }> {
  const report = await client.report<T & { blocks: Block[] }>(path)
  return { ...report, blocks: report.blocks.map(normaliseBlock) }
}

/** The heading of a block. That of a picture is its title. */
export const headingOf = (block: Block): Text => (block.block === 'drawing' ? block.picture.title : block.heading)
