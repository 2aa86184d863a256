/** The rows of the story. Lines that say the same, such as why a model has none of them, share a row. */

export interface StoryRow { name: string; title: string; needs: string[]; /** '' until the line arrives. */ sentence: string }

export function mergeRows(lines: StoryRow[]): StoryRow[] {
  const rows: StoryRow[] = []
  for (const line of lines) {
    const same = line.sentence ? rows.find(({ sentence }) => sentence === line.sentence) : undefined
    if (same) same.title += ` · ${line.title}`
    else rows.push({ ...line })
  }
  return rows
}
